package proxycfg

// #include "capi.h"
import "C"

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/cgo"
	"sync"
	"time"
)

// Options say how an engine is set up. The zero value is a good default.
type Options struct {
	// Datacenter is "dc1" if empty.
	Datacenter string
	// DefaultDeny refuses callers that no intention speaks of.
	DefaultDeny bool
	// Workers is the number of worker threads; 0 means one a core.
	Workers uint32
	// CallbackThreads is the most threads that call into this program; 0 means 64.
	CallbackThreads uint32
	// UpdatesPerSecond is the most snapshots a second over all proxies; 0 means no limit.
	UpdatesPerSecond uint32
	// MinPublishInterval is the least time between two snapshots of one proxy.
	MinPublishInterval time.Duration
	// Linger is how long a query outlives the last proxy that wants it; 0 means ten seconds.
	Linger time.Duration
	// Source answers the kinds of query in SourceKinds; the rest is answered from the engine's store.
	Source Source
	// SourceKinds are the kinds of query that go to Source.
	SourceKinds []QueryKind
	// Logger gets what the binding itself has to say, such as panics of functions that the engine calls. The default is
	// [slog.Default]. For the library's own log see [SetLogger].
	Logger *slog.Logger
}

// Engine keeps the snapshots of registered proxies current. Make one with [New], end it with [Engine.Close].
type Engine struct {
	core *core
}

// core is what an engine consists of; whoever serves it holds the core, so that a forgotten Engine can be collected.
type core struct {
	handle C.uintptr_t
	source C.uintptr_t
	log    *slog.Logger
	close  sync.Once
	stuck  error

	mu       sync.Mutex
	closed   bool
	orphaned bool
	queue    *queue
	watches  roster
	// functions is the number of watches that call a function.
	functions int
}

// New starts an engine.
func New(options Options) (*Engine, error) {
	const op = "new"
	if C.proxycfg_abi_version() != C.PROXYCFG_ABI_VERSION {
		return nil, &Error{op, ErrSystem, fmt.Sprintf(
			"the library has version %d of the ABI, but this package was built with %d",
			C.proxycfg_abi_version(), C.PROXYCFG_ABI_VERSION)}
	}
	c := &core{log: options.Logger}
	if c.log == nil {
		c.log = slog.Default()
	}
	if options.Source != nil {
		source, err := newSource(options.Source, c.log)
		if err != nil {
			return nil, err
		}
		c.source = source
	}
	var kinds C.uint64_t
	for _, kind := range options.SourceKinds {
		kinds |= 1 << kind
	}
	var denied C.int32_t = C.PROXYCFG_INTENTION_DEFAULT_ALLOW
	if options.DefaultDeny {
		denied = C.PROXYCFG_INTENTION_DEFAULT_DENY
	}
	datacenter, datacenterLen := text(options.Datacenter)
	r := C.pc_engine_new(datacenter, datacenterLen, denied, C.uint32_t(options.Workers), C.uint32_t(options.CallbackThreads),
		C.uint32_t(options.UpdatesPerSecond), millis(options.MinPublishInterval), millis(options.Linger), c.source, kinds)
	if err := check(op, r); err != nil {
		C.pc_source_free(c.source)
		return nil, err
	}
	c.handle = r.handle
	e := &Engine{c}
	runtime.AddCleanup(e, (*core).orphan, c)
	return e, nil
}

// millis rounds up, so that a short time isn't taken for none.
func millis(d time.Duration) C.uint64_t {
	if d <= 0 {
		return 0
	}
	return C.uint64_t((d-1)/time.Millisecond) + 1
}

// Close ends the engine: every watch's channel is closed, nothing is delivered any more, and threads are waited for, up to
// ten seconds. It returns an error if functions that the engine called are still blocked then. Closing twice is fine.
func (e *Engine) Close() error {
	defer runtime.KeepAlive(e)
	return e.core.shutDown()
}

// orphan is called when nobody holds the Engine any more: the last watch is the last user of the core.
func (c *core) orphan() {
	c.mu.Lock()
	c.orphaned = true
	unused := c.unused()
	c.mu.Unlock()
	if unused {
		// Waits for threads, which a cleanup must not.
		go c.shutDown()
	}
}

// unused says that neither an Engine nor a watch holds the core. Called under the lock.
func (c *core) unused() bool {
	return c.orphaned && c.watches.empty() && c.functions == 0
}

func (c *core) shutDown() error {
	c.close.Do(func() {
		c.mu.Lock()
		c.closed = true
		var ended []*watch
		for _, w := range c.watches.places {
			if w != nil {
				w.end()
				ended = append(ended, w)
			}
		}
		c.watches = roster{}
		queue := c.queue
		c.mu.Unlock()
		for _, w := range ended {
			w.stop()
		}
		if queue != nil {
			queue.close()
		}
		r := C.pc_engine_close(c.handle, 10_000)
		if r.number > 0 {
			c.stuck = &Error{"close", ErrTimedOut, fmt.Sprintf("%d threads are still busy in functions that they called", r.number)}
		}
		C.pc_engine_free(c.handle)
		C.pc_source_free(c.source)
	})
	return c.stuck
}

// Apply writes into the store: a transaction of registrations, config entries and checks, all or nothing. It is JSON:
//
//	{"Ops": [{"Register": {...}}, {"Deregister": {...}}, {"Config": {...}}, {"DeleteConfig": {"Kind": ..., "Name": ...}}, {"Check": {...}}]}
//
// each in the form of Consul's catalog and config API. It returns the store index afterwards.
func (e *Engine) Apply(transaction []byte) (uint64, error) {
	defer runtime.KeepAlive(e)
	data, length := textOf(transaction)
	r := C.pc_engine_apply(e.core.handle, data, length)
	return uint64(r.number), check("apply", r)
}

// WaitIndex waits until everything that can be computed from what was written up to a store index has reached the
// snapshots; proxies that wait for a source, or are held back by a rate limit, are excepted.
func (e *Engine) WaitIndex(ctx context.Context, storeIndex uint64) error {
	defer runtime.KeepAlive(e)
	// A wait in the library can't be interrupted: it is done in pieces.
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := C.pc_engine_wait_index(e.core.handle, C.uint64_t(storeIndex), millis(wait))
		err := check("wait", r)
		if err == nil || r.code != C.PROXYCFG_RESULT_TIMED_OUT {
			return err
		}
	}
}

// WaitReady waits until a proxy has a snapshot, and returns it; close it when done.
func (e *Engine) WaitReady(ctx context.Context, id ProxyID) (*Snapshot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshots, err := e.Watch(ctx, id)
	if err != nil {
		return nil, err
	}
	select {
	case snapshot, ok := <-snapshots:
		if ok {
			return snapshot, nil
		}
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		if status, statusErr := e.Status(id); statusErr == nil && len(status.WaitingFor) > 0 {
			return nil, fmt.Errorf("%w: the proxy %s waits for %v", err, id, status.WaitingFor)
		}
		return nil, err
	}
	return nil, closed("wait", "watch")
}

// handleOf keeps a Go value for the library, as the number that it calls back with. The library frees it.
func handleOf(value any) (cgo.Handle, C.uintptr_t) {
	handle := cgo.NewHandle(value)
	return handle, C.uintptr_t(handle)
}

func decode[T any](op string, text *C.proxycfg_text) (T, error) {
	var value T
	if err := json.Unmarshal(takeText(text), &value); err != nil {
		return value, &Error{op, ErrPanic, err.Error()}
	}
	return value, nil
}
