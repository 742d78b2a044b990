package proxycfg

// #include <stdlib.h>
// #include "capi.h"
import "C"

import (
	"context"
	"os"
	"runtime"
	"runtime/cgo"
	"sync"
	"syscall"
	"unsafe"
)

// watch is one channel.
type watch struct {
	tag       uint64
	handle    C.uintptr_t
	snapshots chan *Snapshot
	stopAfter func() bool
}

// roster finds watches by their tags. A tag is a place in a list, and a number that tells apart who has had the place.
type roster struct {
	places []*watch
	free   []uint32
	last   uint64
}

func (r *roster) add(w *watch) {
	place := uint32(len(r.places))
	if n := len(r.free); n > 0 {
		place, r.free = r.free[n-1], r.free[:n-1]
		r.places[place] = w
	} else {
		r.places = append(r.places, w)
	}
	r.last++
	w.tag = r.last<<32 | uint64(place)
}

// find gives nil if there is no such watch any more.
func (r *roster) find(tag uint64) *watch {
	if place := uint32(tag); int64(place) < int64(len(r.places)) {
		if w := r.places[place]; w != nil && w.tag == tag {
			return w
		}
	}
	return nil
}

func (r *roster) remove(w *watch) {
	r.places[uint32(w.tag)] = nil
	r.free = append(r.free, uint32(w.tag))
}

func (r *roster) empty() bool { return len(r.places) == len(r.free) }

// put makes a snapshot the one that the channel holds, and gives the reference of the one before, to be released. Called
// under the core's lock, so that it is the only sender.
func (w *watch) put(snapshot *Snapshot) (stale C.uintptr_t) {
	select {
	case old := <-w.snapshots:
		stale = old.held.end()
	default:
	}
	w.snapshots <- snapshot
	return stale
}

// end closes the channel; what it holds isn't delivered. Called under the core's lock.
func (w *watch) end() {
	select {
	case old := <-w.snapshots:
		old.Close()
	default:
	}
	close(w.snapshots)
}

// stop ends the watch in the library.
func (w *watch) stop() {
	if w.stopAfter != nil {
		w.stopAfter()
	}
	C.pc_watch_cancel(w.handle)
}

// Watch gives the snapshots of a proxy, registered or not, until ctx is done or the engine is closed; then the channel is
// closed. The channel holds the newest snapshot that hasn't been received: a slow receiver misses what came between, and
// nothing waits for it. Close each snapshot when done.
//
// A watch takes no goroutine and no thread.
func (e *Engine) Watch(ctx context.Context, id ProxyID) (<-chan *Snapshot, error) {
	defer runtime.KeepAlive(e)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return e.core.watch(ctx, id)
}

func (c *core) watch(ctx context.Context, proxy ProxyID) (<-chan *Snapshot, error) {
	const op = "watch"
	queue, err := c.openQueue(op)
	if err != nil {
		return nil, err
	}
	w := &watch{snapshots: make(chan *Snapshot, 1)}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, closed(op, "engine")
	}
	c.watches.add(w)
	tag := w.tag
	id, idLen := text(proxy.ID)
	node, nodeLen := text(proxy.Node)
	token, tokenLen := text(proxy.Token)
	// Under the lock, so that the first snapshot finds the watch. The library never calls back from here.
	r := C.pc_queue_watch(queue.handle, id, idLen, node, nodeLen, token, tokenLen, C.uint64_t(tag))
	if err := check(op, r); err != nil {
		c.watches.remove(w)
		c.mu.Unlock()
		return nil, err
	}
	w.handle = r.handle
	w.stopAfter = context.AfterFunc(ctx, func() { c.cancel(tag) })
	c.mu.Unlock()
	return w.snapshots, nil
}

// cancel ends a watch, if it hasn't ended.
func (c *core) cancel(tag uint64) {
	c.mu.Lock()
	w := c.watches.find(tag)
	if w != nil {
		c.watches.remove(w)
		w.end()
	}
	last := w != nil && c.unused()
	c.mu.Unlock()
	if w != nil {
		w.stop()
	}
	if last {
		// Perhaps on the goroutine of the queue, which the end waits for.
		go c.shutDown()
	}
}

// deliver gives snapshots to the watches that they are for. It notes in stale, which is as long, the references that are
// to be released, and returns how many they are: releasing them together is one call into the library.
func (c *core) deliver(deliveries []C.proxycfg_delivery, stale []C.uintptr_t) int {
	var received *bag
	dropped := 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range deliveries {
		tag := uint64(deliveries[i].tag)
		handle := C.uintptr_t(uintptr(unsafe.Pointer(deliveries[i].snapshot)))
		w := c.watches.find(tag)
		if w != nil && handle == 0 {
			// The end. Not under the lock.
			go c.cancel(tag)
			continue
		}
		if w != nil {
			var snapshot *Snapshot
			received, snapshot = received.put(handle)
			handle = w.put(snapshot)
		}
		if handle != 0 {
			stale[dropped] = handle
			dropped++
		}
	}
	return dropped
}

// queue receives the snapshots of all watches of an engine, on one goroutine that waits as goroutines do for a network
// connection: it takes no thread while there is nothing.
type queue struct {
	handle C.uintptr_t
	file   *os.File
	done   chan struct{}
	mu     sync.Mutex
	closed bool
}

// batch is how many snapshots are received at a time.
const batch = 256

func (c *core) openQueue(op string) (*queue, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, closed(op, "engine")
	}
	if c.queue != nil {
		return c.queue, nil
	}
	r := C.pc_queue_new(c.handle)
	if err := check(op, r); err != nil {
		return nil, err
	}
	q := &queue{handle: r.handle, done: make(chan struct{})}
	r = C.pc_queue_fd(q.handle)
	if err := check(op, r); err != nil {
		C.pc_queue_free(q.handle)
		return nil, err
	}
	// A descriptor of our own, since the runtime closes it in its own time.
	fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(r.number), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		C.pc_queue_free(q.handle)
		return nil, &Error{op, ErrSystem, errno.Error()}
	}
	q.file = os.NewFile(fd, "proxycfg queue")
	connection, err := q.file.SyscallConn()
	if err != nil {
		q.file.Close()
		C.pc_queue_free(q.handle)
		return nil, &Error{op, ErrSystem, err.Error()}
	}
	c.queue = q
	go q.run(connection, c.deliver)
	return q, nil
}

func (q *queue) run(connection syscall.RawConn, deliver func([]C.proxycfg_delivery, []C.uintptr_t) int) {
	defer close(q.done)
	deliveries := (*C.proxycfg_delivery)(C.calloc(batch, C.sizeof_proxycfg_delivery))
	defer C.free(unsafe.Pointer(deliveries))
	stale := (*C.uintptr_t)(C.calloc(batch, C.sizeof_uintptr_t))
	defer C.free(unsafe.Pointer(stale))
	for open := true; open; {
		// Calls the function until it returns true, and waits for the descriptor in between.
		err := connection.Read(func(uintptr) bool {
			r := C.pc_queue_poll(q.handle, deliveries, batch, 0)
			if r.code != C.PROXYCFG_RESULT_OK {
				open = false
				return true
			}
			if r.number > 0 {
				if dropped := deliver(unsafe.Slice(deliveries, r.number), unsafe.Slice(stale, batch)); dropped > 0 {
					C.pc_release_all(stale, C.size_t(dropped))
				}
			}
			return r.number > 0
		})
		if err != nil {
			open = false
		}
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		// Ends the wait.
		q.file.Close()
		<-q.done
		C.pc_queue_free(q.handle)
	}
}

// funcWatch is a watch that calls a function.
type funcWatch struct {
	core *core
	id   ProxyID
	call func(*Snapshot)
}

// WatchFunc has a function called with each new snapshot of a proxy, on a thread of the engine, until the returned function
// is called or the engine is closed. Calls come one at a time; a slow function gets only the newest snapshot. A panic in it
// is logged, and the next snapshot is tried again. The function owns the snapshot. After cancel has returned it isn't called
// any more, unless cancel was called from within it.
//
// [Engine.Watch] is the better choice for many watches: a thread's first call into Go takes long, and each call costs more
// than a place in a batch.
func (e *Engine) WatchFunc(proxy ProxyID, call func(*Snapshot)) (cancel func(), err error) {
	defer runtime.KeepAlive(e)
	const op = "watch"
	if call == nil {
		return nil, &Error{op, ErrInvalidArgument, "the function is nil"}
	}
	c := e.core
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, closed(op, "engine")
	}
	c.functions++
	c.mu.Unlock()
	handle, number := handleOf(&funcWatch{c, proxy, call})
	id, idLen := text(proxy.ID)
	node, nodeLen := text(proxy.Node)
	token, tokenLen := text(proxy.Token)
	r := C.pc_watch(c.handle, id, idLen, node, nodeLen, token, tokenLen, number)
	if err := check(op, r); err != nil {
		// The library hasn't taken it.
		handle.Delete()
		c.functionEnded()
		return nil, err
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			C.pc_watch_cancel(r.handle)
			c.functionEnded()
		})
	}, nil
}

func (c *core) functionEnded() {
	c.mu.Lock()
	c.functions--
	last := c.unused()
	c.mu.Unlock()
	if last {
		go c.shutDown()
	}
}

//export pcGoSnapshot
func pcGoSnapshot(userData, handle C.uintptr_t) {
	if handle == 0 {
		return
	}
	snapshot := newSnapshot(handle)
	w := cgo.Handle(userData).Value().(*funcWatch)
	defer func() {
		if panicked := recover(); panicked != nil {
			w.core.log.Error("a function that watches a proxy panicked", "proxy", w.id.String(), "panic", panicked)
		}
	}()
	w.call(snapshot)
}

//export pcGoFreed
func pcGoFreed(userData C.uintptr_t) { cgo.Handle(userData).Delete() }
