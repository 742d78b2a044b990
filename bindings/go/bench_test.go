package proxycfg

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/proxycfg/proxycfg/bindings/go/internal/bare"
)

// calls times a cheap call. Beside the mean it reports the least of some thousand runs, each by the time of its thread alone:
// what else the machine does only adds to it.
func calls(b *testing.B, call func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const run = 1_000
	least := math.Inf(1)
	for done := 0; done < b.N; done += run {
		begin := threadTime(b)
		for range run {
			call()
		}
		least = min(least, float64(threadTime(b)-begin)/run)
	}
	b.ReportMetric(least, "least-ns/op")
}

// threadTime is how long this thread has run.
func threadTime(b *testing.B) time.Duration {
	const threadClock = 3
	var now syscall.Timespec
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&now)), 0); err != 0 {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// BenchmarkBareCall is what any call from Go into C costs at least.
func BenchmarkBareCall(b *testing.B) {
	calls(b, func() { bare.Call(1) })
}

// BenchmarkCall is a cheap call of the library.
func BenchmarkCall(b *testing.B) {
	engine := newEngine(b, Options{})
	must(engine.Register(sidecar("web")))
	snapshot := must(engine.WaitReady(shortly(b), proxy("web")))
	defer snapshot.Close()
	b.ResetTimer()
	calls(b, func() { snapshot.Index() })
}

// BenchmarkJSON reads the JSON of a snapshot with ten upstreams of ten endpoints each, encoded before.
func BenchmarkJSON(b *testing.B) {
	snapshot := tenByTen(b)
	defer snapshot.Close()
	b.SetBytes(int64(len(must(snapshot.JSON()))))
	for b.Loop() {
		must(snapshot.JSON())
	}
}

// BenchmarkPointer reads a part of such a snapshot.
func BenchmarkPointer(b *testing.B) {
	snapshot := tenByTen(b)
	defer snapshot.Close()
	for b.Loop() {
		must(snapshot.Pointer("/ConnectProxy/Upstreams/s5/Endpoints"))
	}
}

// BenchmarkResources reads the clusters of such a snapshot, made before.
func BenchmarkResources(b *testing.B) {
	snapshot := tenByTen(b)
	defer snapshot.Close()
	for b.Loop() {
		must(snapshot.Resources(ClusterType))
	}
}

func tenByTen(b *testing.B) *Snapshot {
	engine := newEngine(b, Options{})
	var dials []string
	var index uint64
	for s := range 10 {
		dials = append(dials, fmt.Sprint("s", s))
		for n := range 10 {
			index = instance(b, engine, fmt.Sprint("s", s), n, 1000)
		}
	}
	must(engine.Register(sidecar("web", dials...)))
	must(engine.WaitReady(shortly(b), proxy("web"))).Close()
	settle(b, engine, index)
	return must(engine.WaitReady(shortly(b), proxy("web")))
}

// deliveries is how many watches of one proxy are given each snapshot, so that the time to make it doesn't count.
const deliveries = 5_000

// deliver times rounds of deliveries to all watches, as many as b.N is worth; a round gives how long it took. Beside the mean
// of one delivery it reports that of the quickest round.
func deliver(b *testing.B, round func(n int) time.Duration) {
	var all time.Duration
	least := time.Duration(math.MaxInt64)
	rounds := (b.N + deliveries - 1) / deliveries
	b.ResetTimer()
	for n := range rounds {
		took := round(n)
		all, least = all+took, min(least, took)
	}
	b.ReportMetric(float64(all.Nanoseconds())/float64(rounds*deliveries), "ns/op")
	b.ReportMetric(float64(least.Nanoseconds())/deliveries, "least-ns/op")
}

// BenchmarkDeliveryByQueue is the way of a snapshot from the library into a channel, in batches; the time is of one.
func BenchmarkDeliveryByQueue(b *testing.B) {
	engine := newEngine(b, Options{})
	must(engine.Register(sidecar("web", "db")))
	settle(b, engine, instance(b, engine, "db", 0, 1))
	must(engine.WaitReady(shortly(b), proxy("web"))).Close()
	channels := make([]<-chan *Snapshot, deliveries)
	for n := range channels {
		channels[n] = must(engine.Watch(shortly(b), proxy("web")))
	}
	for _, channel := range channels {
		next(b, channel).Close()
	}
	deliver(b, func(n int) time.Duration {
		begin := time.Now()
		instance(b, engine, "db", 0, 2+n%60_000)
		for _, channel := range channels {
			(<-channel).Close()
		}
		return time.Since(begin)
	})
}

// BenchmarkReceiveInBatches is the share of this package: what waits in the library goes into channels that nobody reads, each
// of which then holds the newest.
func BenchmarkReceiveInBatches(b *testing.B) {
	engine := newEngine(b, Options{})
	must(engine.Register(sidecar("web", "db")))
	settle(b, engine, instance(b, engine, "db", 0, 1))
	must(engine.WaitReady(shortly(b), proxy("web"))).Close()
	channels := make([]<-chan *Snapshot, deliveries)
	for n := range channels {
		channels[n] = must(engine.Watch(shortly(b), proxy("web")))
	}
	last := channels[len(channels)-1]
	next(b, last).Close()
	deliver(b, func(n int) time.Duration {
		// While the lock is held, what is received waits.
		engine.core.mu.Lock()
		index := instance(b, engine, "db", 0, 2+n%60_000)
		settle(b, engine, index)
		begin := time.Now()
		engine.core.mu.Unlock()
		for {
			snapshot := <-last
			newest := snapshot.Index() == index
			snapshot.Close()
			if newest {
				return time.Since(begin)
			}
		}
	})
}

// BenchmarkDeliveryByFunction is the way of a snapshot from the library into a function; the time is of one.
func BenchmarkDeliveryByFunction(b *testing.B) {
	engine := newEngine(b, Options{})
	must(engine.Register(sidecar("web", "db")))
	settle(b, engine, instance(b, engine, "db", 0, 1))
	must(engine.WaitReady(shortly(b), proxy("web"))).Close()
	var calls atomic.Int64
	for range deliveries {
		must(engine.WatchFunc(proxy("web"), func(s *Snapshot) { s.Close(); calls.Add(1) }))
	}
	eventually(b, "all are called", func() bool { return calls.Load() == deliveries })
	deliver(b, func(n int) time.Duration {
		begin, before := time.Now(), calls.Load()
		instance(b, engine, "db", 0, 2+n%60_000)
		for calls.Load() < before+deliveries {
			time.Sleep(50 * time.Microsecond)
		}
		return time.Since(begin)
	})
}
