package proxycfg

// #include "capi.h"
import "C"

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Snapshot is everything that one proxy needs, at one store index. It is immutable and outlives its engine. Close it when
// done; what its methods return stays valid.
type Snapshot struct {
	held *held
}

// held is a reference to a snapshot of the library.
type held struct {
	handle C.uintptr_t
	// users is how many calls read the snapshot, plus ended once it is closed. Whoever brings it to ended releases the
	// reference: Close, or the last of the calls.
	users atomic.Int64
}

// ended makes every number of users negative.
const ended = math.MinInt64 / 2

// use begins a call that reads the snapshot's memory; false if it is closed.
func (h *held) use() bool {
	if h == nil {
		return false
	}
	for {
		users := h.users.Load()
		if users < 0 {
			return false
		}
		if h.users.CompareAndSwap(users, users+1) {
			return true
		}
	}
}

func (h *held) done() {
	if h.users.Add(-1) == ended {
		C.pc_snapshot_release(h.handle)
	}
}

// end closes it. The reference that is to be released is returned, 0 if there is none: it was closed before, or a call that
// reads it will release it.
func (h *held) end() C.uintptr_t {
	if h == nil {
		return 0
	}
	for {
		users := h.users.Load()
		if users < 0 {
			return 0
		}
		if h.users.CompareAndSwap(users, users+ended) {
			if users == 0 {
				return h.handle
			}
			return 0
		}
	}
}

// bagSize is how many snapshots are made together: few, since one that is kept keeps them all from being collected.
const bagSize = 32

// bag is snapshots that were received together. A cleanup for each would cost more than all the rest of a delivery; so there
// is one for the bag, which releases what wasn't closed when all its snapshots are garbage. A snapshot points into the bag,
// so it keeps it.
type bag struct {
	snapshots [bagSize]Snapshot
	// held is memory of its own, which the cleanup may refer to.
	held *[bagSize]held
	used int
}

func newBag() *bag {
	b := &bag{held: new([bagSize]held)}
	runtime.AddCleanup(b, endAll, b.held)
	return b
}

func endAll(all *[bagSize]held) {
	for i := range all {
		if all[i].handle != 0 {
			release(all[i].end())
		}
	}
}

// put takes over a reference, into this bag or, if it is full, the next, which is returned.
func (b *bag) put(handle C.uintptr_t) (*bag, *Snapshot) {
	if b == nil || b.used == bagSize {
		b = newBag()
	}
	snapshot, held := &b.snapshots[b.used], &b.held[b.used]
	held.handle = handle
	snapshot.held = held
	b.used++
	return b, snapshot
}

// newSnapshot takes over a reference.
func newSnapshot(handle C.uintptr_t) *Snapshot {
	held := &held{handle: handle}
	snapshot := &Snapshot{held}
	runtime.AddCleanup(snapshot, endOne, held)
	return snapshot
}

func endOne(h *held) { release(h.end()) }

func release(handle C.uintptr_t) {
	if handle != 0 {
		C.pc_snapshot_release(handle)
	}
}

// Close lets go of the snapshot. Closing twice is fine.
func (s *Snapshot) Close() {
	release(s.held.end())
	runtime.KeepAlive(s)
}

// open is the handle, 0 once it is closed. The library checks handles, so a call that reads no memory needs no more.
func (s *Snapshot) open() C.uintptr_t {
	if s.held == nil || s.held.users.Load() < 0 {
		return 0
	}
	return s.held.handle
}

// Index is the store index that every part of the snapshot was read at; 0 once it is closed.
func (s *Snapshot) Index() uint64 {
	index := uint64(C.pc_snapshot_index(s.open()))
	runtime.KeepAlive(s)
	return index
}

// ID is the proxy that the snapshot is for; empty once it is closed.
func (s *Snapshot) ID() ProxyID {
	if !s.held.use() {
		return ProxyID{}
	}
	defer runtime.KeepAlive(s)
	defer s.held.done()
	id := C.pc_snapshot_proxy_id(s.held.handle)
	return ProxyID{goString(id.id), goString(id.node), goString(id.token)}
}

// Kind is the kind of the proxy; 0 once it is closed.
func (s *Snapshot) Kind() Kind {
	kind := Kind(C.pc_snapshot_kind(s.open()))
	runtime.KeepAlive(s)
	return kind
}

// JSON is the whole snapshot, without private keys.
func (s *Snapshot) JSON() ([]byte, error) { return s.Pointer("") }

// Pointer is the part of the snapshot's JSON that a JSON pointer names, such as "/Roots/TrustDomain"; [ErrNotFound] if there
// is nothing.
func (s *Snapshot) Pointer(pointer string) ([]byte, error) {
	if !s.held.use() {
		return nil, closed("json", "snapshot")
	}
	defer runtime.KeepAlive(s)
	defer s.held.done()
	data, length := text(pointer)
	r := C.pc_snapshot_json(s.held.handle, data, length)
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
	if !s.held.use() {
		return nil, closed("resources", "snapshot")
	}
	defer runtime.KeepAlive(s)
	defer s.held.done()
	data, length := text(typeURL)
	r := C.pc_snapshot_resources(s.held.handle, data, length)
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
	if !s.held.use() {
		return nil, closed("problems", "snapshot")
	}
	defer runtime.KeepAlive(s)
	defer s.held.done()
	r := C.pc_snapshot_problems(s.held.handle)
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
	if !s.held.use() {
		return nil, closed("diff", "snapshot")
	}
	defer runtime.KeepAlive(s)
	defer s.held.done()
	if !newer.held.use() {
		return nil, closed("diff", "snapshot")
	}
	defer runtime.KeepAlive(newer)
	defer newer.held.done()
	r := C.pc_snapshot_diff(s.held.handle, newer.held.handle)
	if err := check("diff", r); err != nil {
		return nil, err
	}
	return decode[[]Change]("diff", r.text)
}

// LiveSnapshots is how many snapshots of the library this process holds, over all engines: for finding leaks. Those that were
// forgotten count until they are collected.
func LiveSnapshots() int { return int(C.proxycfg_live_handles(C.PROXYCFG_HANDLE_KIND_SNAPSHOT)) }
