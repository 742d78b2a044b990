package proxycfg

// #include "capi.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Snapshot is everything that one proxy needs, at one store index. It is immutable and outlives its engine. Close it when
// done; what its methods return stays valid.
type Snapshot struct {
	// Held for reading while the library reads the snapshot.
	mu sync.RWMutex
	// pointer is nil once it is closed.
	pointer *C.proxycfg_snapshot
	bag     *bag
	place   int
}

// bag holds the references of the snapshots that were received together. A cleanup for each would cost more than all the
// rest of a delivery; so there is one for the bag, which releases what wasn't closed when the last of its snapshots is found
// to be garbage.
type bag struct {
	// references are pointers of the library, nil where the snapshot was closed.
	references []unsafe.Pointer
}

func newBag(size int) *bag {
	b := &bag{make([]unsafe.Pointer, size)}
	runtime.AddCleanup(b, releaseAll, b.references)
	return b
}

func releaseAll(references []unsafe.Pointer) {
	for i := range references {
		release((*C.proxycfg_snapshot)(atomic.SwapPointer(&references[i], nil)))
	}
}

// put takes over a reference.
func (b *bag) put(place int, pointer *C.proxycfg_snapshot) *Snapshot {
	atomic.StorePointer(&b.references[place], unsafe.Pointer(pointer))
	return &Snapshot{pointer: pointer, bag: b, place: place}
}

// newSnapshot takes over a reference.
func newSnapshot(pointer *C.proxycfg_snapshot) *Snapshot { return newBag(1).put(0, pointer) }

func release(pointer *C.proxycfg_snapshot) {
	if pointer != nil {
		C.proxycfg_snapshot_release(pointer)
	}
}

// Close lets go of the snapshot. Closing twice is fine.
func (s *Snapshot) Close() { release(s.take()) }

// take closes the snapshot, but leaves the release of its reference to the caller; nil if it was closed before.
func (s *Snapshot) take() *C.proxycfg_snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pointer == nil {
		return nil
	}
	s.pointer = nil
	return (*C.proxycfg_snapshot)(atomic.SwapPointer(&s.bag.references[s.place], nil))
}

// Index is the store index that every part of the snapshot was read at; 0 once it is closed.
func (s *Snapshot) Index() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	index := uint64(C.proxycfg_snapshot_index(s.pointer))
	runtime.KeepAlive(s)
	return index
}

// ID is the proxy that the snapshot is for; empty once it is closed.
func (s *Snapshot) ID() ProxyID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	id := C.proxycfg_snapshot_proxy_id(s.pointer)
	copied := ProxyID{goString(id.id), goString(id.node), goString(id.token)}
	runtime.KeepAlive(s)
	return copied
}

// Kind is the kind of the proxy; 0 once it is closed.
func (s *Snapshot) Kind() Kind {
	s.mu.RLock()
	defer s.mu.RUnlock()
	kind := Kind(C.proxycfg_snapshot_kind(s.pointer))
	runtime.KeepAlive(s)
	return kind
}

// JSON is the whole snapshot, without private keys.
func (s *Snapshot) JSON() ([]byte, error) { return s.Pointer("") }

// Pointer is the part of the snapshot's JSON that a JSON pointer names, such as "/Roots/TrustDomain"; [ErrNotFound] if there
// is nothing.
func (s *Snapshot) Pointer(pointer string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	defer runtime.KeepAlive(s)
	if s.pointer == nil {
		return nil, closed("json", "snapshot")
	}
	data, length := text(pointer)
	r := C.pc_snapshot_json(s.pointer, data, length)
	if err := check("json", r); err != nil {
		return nil, err
	}
	return goBytes(r.data, r.len), nil
}

// The types of resource.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	SecretType   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Resource is one Envoy resource.
type Resource struct {
	// Name is unique within its type.
	Name string
	// Version is the SHA-256 of the bytes, in hexadecimal.
	Version string
	// Bytes is the message, serialized: the value of an Any of the type. Those of a secret hold a private key.
	Bytes []byte
}

// Resources are the Envoy resources of one type, sorted by name.
func (s *Snapshot) Resources(typeURL string) ([]Resource, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	defer runtime.KeepAlive(s)
	if s.pointer == nil {
		return nil, closed("resources", "snapshot")
	}
	data, length := text(typeURL)
	r := C.pc_snapshot_resources(s.pointer, data, length)
	if err := check("resources", r); err != nil {
		return nil, err
	}
	if r.len == 0 {
		return nil, nil
	}
	resources := make([]Resource, r.len)
	for i, resource := range unsafe.Slice((*C.proxycfg_resource)(r.data), r.len) {
		resources[i] = Resource{
			Name:    goString(resource.name),
			Version: goString(resource.version),
			Bytes:   goBytes(unsafe.Pointer(resource.bytes.data), resource.bytes.len),
		}
	}
	return resources, nil
}

// Problems says what couldn't be turned into Envoy resources as it is configured, and what was done instead.
func (s *Snapshot) Problems() ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	defer runtime.KeepAlive(s)
	if s.pointer == nil {
		return nil, closed("problems", "snapshot")
	}
	r := C.pc_snapshot_problems(s.pointer)
	if err := check("problems", r); err != nil {
		return nil, err
	}
	return decode[[]string]("problems", r.text)
}

// Change is one difference between two snapshots.
type Change struct {
	// Change is what changed: "header", "roots", "leaf", "intentions", "upstream-added", "upstream-endpoints" and the like.
	Change string
	// Upstream is the upstream that it is about, if any.
	Upstream string
	// Target is the target of the upstream that it is about, if any.
	Target string
}

// Diff says what changed from this snapshot to a newer one of the same proxy.
func (s *Snapshot) Diff(newer *Snapshot) ([]Change, error) {
	// One at a time: two goroutines that compare both ways must not wait for each other.
	older := s.retain()
	defer release(older)
	next := newer.retain()
	defer release(next)
	if older == nil || next == nil {
		return nil, closed("diff", "snapshot")
	}
	r := C.pc_snapshot_diff(older, next)
	if err := check("diff", r); err != nil {
		return nil, err
	}
	return decode[[]Change]("diff", r.text)
}

// retain gives a reference of its own; nil once it is closed.
func (s *Snapshot) retain() *C.proxycfg_snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	retained := C.proxycfg_snapshot_retain(s.pointer)
	runtime.KeepAlive(s)
	return retained
}
