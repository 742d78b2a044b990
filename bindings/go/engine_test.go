package proxycfg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTheCompleteLoop(t *testing.T) {
	engine := newEngine(t, Options{})
	instance(t, engine, "db", 1, 5432)
	if registered := must(engine.Register(sidecar("web", "db"))); registered != Created {
		t.Fatal(registered)
	}
	if registered := must(engine.Register(sidecar("web", "db"))); registered != Unchanged {
		t.Fatal(registered)
	}
	snapshots := must(engine.Watch(shortly(t), proxy("web")))
	first := next(t, snapshots)
	if first.ID() != proxy("web") || first.Kind() != ConnectProxy || first.Index() == 0 {
		t.Fatal(first.ID(), first.Kind(), first.Index())
	}
	var endpoints map[string][]struct{ Address string }
	if err := json.Unmarshal(must(first.Pointer("/ConnectProxy/Upstreams/db/Endpoints")), &endpoints); err != nil {
		t.Fatal(err)
	}
	if got := endpoints["db.default.default.dc1"]; len(got) != 1 || got[0].Address != "10.0.0.2" {
		t.Fatal(endpoints)
	}
	clusters := must(first.Resources(ClusterType))
	names := []string{}
	for _, cluster := range clusters {
		names = append(names, cluster.Name)
		if len(cluster.Version) != 64 || len(cluster.Bytes) == 0 {
			t.Fatal(cluster)
		}
	}
	if len(names) != 2 || !strings.HasPrefix(names[0], "db.default.dc1.") || names[1] != "local_app" {
		t.Fatal(names)
	}
	settle(t, engine, instance(t, engine, "db", 2, 5432))
	second := next(t, snapshots)
	changes := must(first.Diff(second))
	want := Change{"upstream-endpoints", "db", "db.default.default.dc1"}
	if len(changes) != 1 || changes[0] != want {
		t.Fatal(changes)
	}
	if problems := must(second.Problems()); len(problems) != 0 {
		t.Fatal(problems)
	}
	proxies := must(engine.Proxies("host"))
	if len(proxies) != 1 || !proxies[0].Ready || proxies[0].Watchers != 1 || proxies[0].Kind != "connect-proxy" {
		t.Fatal(proxies)
	}
	if err := engine.Deregister(proxy("web"), ""); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second.Close()
}

func TestErrorsAreTyped(t *testing.T) {
	engine := newEngine(t, Options{})
	_, err := engine.Apply([]byte(`{"Ops": [{"Config": {"Kind": "service-defaults", "Name": "a", "Protokol": "http"}}]}`))
	var failed *Error
	if !errors.Is(err, ErrRefused) || !errors.As(err, &failed) || failed.Op != "apply" {
		t.Fatal(err)
	}
	if !strings.Contains(failed.Message, "did you mean Protocol?") {
		t.Fatal(failed.Message)
	}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{func() error { _, err := engine.Apply([]byte("{")); return err }(), ErrInvalidArgument},
		{func() error { _, err := engine.Apply([]byte("a\xff")); return err }(), ErrInvalidUTF8},
		{func() error { _, err := engine.Apply(nil); return err }(), ErrInvalidArgument},
		{engine.Deregister(proxy("nobody"), ""), ErrNotFound},
		{func() error { _, err := engine.Status(proxy("nobody")); return err }(), ErrNotFound},
		{func() error { _, err := engine.Watch(context.Background(), ProxyID{}); return err }(), ErrInvalidArgument},
		{func() error { _, err := engine.WatchFunc(ProxyID{}, func(*Snapshot) {}); return err }(), ErrInvalidArgument},
		{func() error { _, err := engine.WatchFunc(proxy("p"), nil); return err }(), ErrInvalidArgument},
		{func() error { _, err := engine.Register(Registration{}); return err }(), ErrInvalidArgument},
		{func() error { _, err := New(Options{Datacenter: "Not Good"}); return err }(), ErrInvalidArgument},
		{func() error { _, err := New(Options{Source: &fakeSource{}}); return err }(), ErrInvalidArgument},
		{func() error { _, err := New(Options{SourceKinds: []QueryKind{LeafQuery}}); return err }(), ErrInvalidArgument},
	} {
		if !errors.Is(c.err, c.want) || c.err.Error() == "" {
			t.Errorf("%v is not %v", c.err, c.want)
		}
	}
	other := sidecar("web")
	other.Source = "other"
	must(engine.Register(sidecar("web")))
	if _, err := engine.Register(other); !errors.Is(err, ErrOtherSource) {
		t.Fatal(err)
	}
	other.Overwrite = true
	if registered := must(engine.Register(other)); registered != Unchanged {
		t.Fatal(registered)
	}
	snapshot := must(engine.WaitReady(shortly(t), proxy("web")))
	if _, err := snapshot.Pointer("/nothing"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := snapshot.Resources("nothing"); !errors.Is(err, ErrInvalidArgument) {
		t.Fatal(err)
	}
	snapshot.Close()
	snapshot.Close()
	for _, err := range []error{
		second(snapshot.JSON()), second(snapshot.Resources(ClusterType)), second(snapshot.Diff(snapshot)), second(snapshot.Problems()),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if snapshot.Index() != 0 || snapshot.ID() != (ProxyID{}) || snapshot.Kind() != 0 {
		t.Error("a closed snapshot says something")
	}
}

func second[T any](_ T, err error) error { return err }

func TestWaitReadySaysWhatIsMissing(t *testing.T) {
	engine := newEngine(t, Options{Source: &fakeSource{}, SourceKinds: []QueryKind{IntentionsQuery}})
	must(engine.Register(sidecar("web")))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := engine.WaitReady(ctx, proxy("web"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "intentions of web") {
		t.Fatal(err)
	}
	if err := engine.WaitIndex(ctx, 1<<40); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestASlowReceiverGetsTheNewestSnapshot(t *testing.T) {
	engine := newEngine(t, Options{})
	must(engine.Register(sidecar("web", "db")))
	snapshots := must(engine.Watch(shortly(t), proxy("web")))
	next(t, snapshots).Close()
	var index uint64
	for n := range 50 {
		index = instance(t, engine, "db", n, 5432)
		settle(t, engine, index)
	}
	last := uint64(0)
	for last < index {
		snapshot := next(t, snapshots)
		if snapshot.Index() <= last {
			t.Fatalf("%d after %d", snapshot.Index(), last)
		}
		last = snapshot.Index()
		snapshot.Close()
	}
	select {
	case snapshot := <-snapshots:
		t.Fatal("one too many", snapshot.Index())
	default:
	}
}

func TestTheEndOfAContextEndsTheWatch(t *testing.T) {
	engine := newEngine(t, Options{})
	must(engine.Register(sidecar("web", "db")))
	ctx, cancel := context.WithCancel(context.Background())
	snapshots := must(engine.Watch(ctx, proxy("web")))
	next(t, snapshots).Close()
	settle(t, engine, instance(t, engine, "db", 1, 5432))
	cancel()
	eventually(t, "the channel is closed", func() bool {
		select {
		case _, open := <-snapshots:
			return !open
		default:
			return false
		}
	})
	eventually(t, "the watch is gone", func() bool { return must(engine.Status(proxy("web"))).Watchers == 0 })
	if _, err := engine.Watch(ctx, proxy("web")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestNothingIsDeliveredAfterClose(t *testing.T) {
	for range 20 {
		engine := must(New(Options{}))
		must(engine.Register(sidecar("web", "db")))
		var channels []<-chan *Snapshot
		for range 20 {
			channels = append(channels, must(engine.Watch(context.Background(), proxy("web"))))
		}
		var calls sync.Map
		must(engine.WatchFunc(proxy("web"), func(s *Snapshot) { s.Close(); calls.Store("after", true) }))
		stop := make(chan struct{})
		var writers sync.WaitGroup
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					_, _ = engine.Apply(fmt.Appendf(nil, `{"Ops": [{"Register": {"Node": "n%d", "Address": "10.0.0.1", "Service":
						{"Kind": "connect-proxy", "Service": "db-proxy", "Port": 1, "Proxy": {"DestinationServiceName": "db"}}}}]}`, n%50))
				}
			}
		})
		next(t, channels[0]).Close()
		if err := engine.Close(); err != nil {
			t.Fatal(err)
		}
		calls.Delete("after")
		for _, channel := range channels {
			if snapshot, open := <-channel; open {
				t.Fatal("a snapshot after Close", snapshot.Index())
			}
		}
		close(stop)
		writers.Wait()
		if _, called := calls.Load("after"); called {
			t.Fatal("a call after Close")
		}
		if err := engine.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Watch(context.Background(), proxy("web")); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		if _, err := engine.Apply([]byte(`{"Ops": []}`)); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		if _, err := engine.WatchFunc(proxy("web"), func(*Snapshot) {}); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

// FC-095: what is in use isn't collected, whatever the program forgets.
func TestFC095CollectedWhileInUse(t *testing.T) {
	rounds, goroutines := 20, 8
	if testing.Short() {
		rounds = 5
	}
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				snapshots, cancelFunc := func() (<-chan *Snapshot, func()) {
					engine := must(New(Options{Workers: 1}))
					must(engine.Register(sidecar("web", "db")))
					cancelFunc := must(engine.WatchFunc(proxy("web"), func(s *Snapshot) { _ = must(s.JSON()) }))
					return must(engine.Watch(ctx, proxy("web"))), cancelFunc
				}()
				runtime.GC()
				snapshot := next(t, snapshots)
				encoded := must(snapshot.JSON())
				resources := must(snapshot.Resources(ListenerType))
				snapshot = nil
				runtime.GC()
				if !json.Valid(encoded) || len(resources) != 2 || len(resources[0].Bytes) == 0 {
					t.Error("broken")
				}
				cancel()
				cancelFunc()
			}
		})
	}
	all.Wait()
	// All engines are gone, though nobody closed one.
	eventually(t, "forgotten engines end", func() bool { collect(); return threads(t) < 60+4*runtime.NumCPU() && goroutinesOf("proxycfg") <= 1 })
}

// goroutinesOf counts goroutines that are in a function of this package's queue.
func goroutinesOf(string) int {
	buffer := make([]byte, 1<<20)
	return strings.Count(string(buffer[:runtime.Stack(buffer, true)]), "(*queue).run")
}

// FC-097: a panic in a function that the engine calls costs only itself.
func TestFC097PanicsAreRecovered(t *testing.T) {
	logged := &notes{}
	engine := newEngine(t, Options{Logger: logged.logger()})
	must(engine.Register(sidecar("web", "db")))
	calls := make(chan int, 100)
	n := 0
	cancel := must(engine.WatchFunc(proxy("web"), func(s *Snapshot) {
		defer s.Close()
		n++
		calls <- n
		if n == 3 {
			panic("on the third call")
		}
	}))
	other := must(engine.Watch(shortly(t), proxy("web")))
	for want := 1; want <= 5; want++ {
		select {
		case got := <-calls:
			if got != want {
				t.Fatal(got, want)
			}
		case <-time.After(patience):
			t.Fatal("no call", want)
		}
		next(t, other).Close()
		settle(t, engine, instance(t, engine, "db", want, 5432))
	}
	if text := logged.text(); !strings.Contains(text, "on the third call") || !strings.Contains(text, "node/web") {
		t.Fatal(text)
	}
	cancel()
	cancel()
}

func TestCancelAndCloseFromWithinAFunction(t *testing.T) {
	engine := must(New(Options{}))
	must(engine.Register(sidecar("web", "db")))
	cancels := make(chan func(), 1)
	var calls, ended sync.WaitGroup
	calls.Add(1)
	ended.Add(1)
	cancels <- must(engine.WatchFunc(proxy("web"), func(s *Snapshot) {
		defer calls.Done()
		(<-cancels)()
		s.Close()
		if err := engine.WaitIndex(context.Background(), 1<<40); !errors.Is(err, ErrEngineThread) {
			t.Error(err)
		}
	}))
	calls.Wait()
	settle(t, engine, instance(t, engine, "db", 1, 1))
	must(engine.WatchFunc(proxy("web"), func(s *Snapshot) {
		defer ended.Done()
		// The thread that it is called on is busy, by its own doing.
		if err := engine.Close(); err != nil && !errors.Is(err, ErrTimedOut) {
			t.Error(err)
		}
		_ = must(s.JSON())
	}))
	ended.Wait()
}

// FC-098: one engine from many goroutines, with all operations. The long form is PROXYCFG_TEST_SECONDS=60.
func TestFC098OneEngineFromManyGoroutines(t *testing.T) {
	engine := newEngine(t, Options{})
	goroutines, rounds := 64, 200
	if testing.Short() {
		goroutines, rounds = 16, 50
	}
	var end time.Time
	if given := os.Getenv("PROXYCFG_TEST_SECONDS"); given != "" {
		seconds := must(strconv.ParseFloat(given, 64))
		goroutines, end = 64, time.Now().Add(time.Duration(seconds*float64(time.Second)))
	}
	more := func(round int) bool {
		if end.IsZero() {
			return round < rounds
		}
		return time.Now().Before(end)
	}
	var all sync.WaitGroup
	for seed := range goroutines {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			var kept *Snapshot
			for round := 0; more(round); round++ {
				id := fmt.Sprint("p", random.IntN(4))
				switch random.IntN(9) {
				case 0, 1:
					must(engine.Register(sidecar(id, "db")))
				case 2:
					if err := engine.Deregister(proxy(id), ""); err != nil && !errors.Is(err, ErrNotFound) {
						t.Error(err)
					}
				case 3:
					instance(t, engine, "db", random.IntN(20), 1+random.IntN(1000))
				case 4:
					if _, err := engine.Status(proxy(id)); err != nil && !errors.Is(err, ErrNotFound) {
						t.Error(err)
					}
					must(engine.Proxies(""))
				case 5:
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(2000))*time.Microsecond)
					if snapshot, err := engine.WaitReady(ctx, proxy(id)); err == nil {
						must(snapshot.JSON())
						must(snapshot.Resources(ClusterType))
						if kept != nil {
							must(kept.Diff(snapshot))
							kept.Close()
						}
						kept = snapshot
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					cancel()
				case 6:
					ctx, cancel := context.WithCancel(context.Background())
					snapshots := must(engine.Watch(ctx, proxy(id)))
					if random.IntN(2) == 0 {
						runtime.Gosched()
						select {
						case snapshot := <-snapshots:
							snapshot.Close()
						default:
						}
					}
					cancel()
				case 7:
					cancel := must(engine.WatchFunc(proxy(id), func(s *Snapshot) { s.Index(); s.Close() }))
					cancel()
				case 8:
					if kept != nil {
						// Closed while another reads.
						var both sync.WaitGroup
						both.Go(func() { _, _ = kept.JSON() })
						both.Go(kept.Close)
						both.Wait()
						kept = nil
					}
				}
			}
		})
	}
	all.Wait()
	// It is as if they had come one at a time: what is done now is seen, and the whole of it.
	for n := range 4 {
		must(engine.Register(sidecar(fmt.Sprint("p", n), "db")))
	}
	instance(t, engine, "db", 0, 2001)
	index := instance(t, engine, "db", 0, 2002)
	settle(t, engine, index)
	for n := range 4 {
		snapshot := must(engine.WaitReady(shortly(t), proxy(fmt.Sprint("p", n))))
		if got := snapshot.Index(); got != index {
			t.Error(n, got, index)
		}
		snapshot.Close()
	}
}

// Closing while others read: each call has all of it or none, and the reference is released once.
func TestSnapshotsAreReleasedOnce(t *testing.T) {
	engine := newEngine(t, Options{})
	must(engine.Register(sidecar("web", "db")))
	keep := must(engine.WaitReady(shortly(t), proxy("web")))
	for range 200 {
		snapshot := must(engine.WaitReady(shortly(t), proxy("web")))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if json, err := snapshot.JSON(); err == nil && len(json) == 0 || err != nil && !errors.Is(err, ErrClosed) {
					t.Error(len(json), err)
				}
				if id := snapshot.ID(); id != (ProxyID{}) && id != proxy("web") {
					t.Error(id)
				}
			})
			all.Go(snapshot.Close)
		}
		all.Wait()
		// Both have the same snapshot of the library: a reference released twice would be this one's.
		if snapshot.Index() != 0 || keep.Index() == 0 || len(must(keep.JSON())) == 0 {
			t.Fatal("released too often")
		}
	}
	keep.Close()
	// What isn't closed is released when it is collected, those that were received together as well.
	for range 100 {
		must(engine.WatchFunc(proxy("web"), func(*Snapshot) {}))
		next(t, must(engine.Watch(context.Background(), proxy("web"))))
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all snapshots are released", func() bool { collect(); return LiveSnapshots() == 0 })
}

// 10,000 watches take no goroutine, no thread and no memory that grows.
func TestTenThousandWatchesStayFlat(t *testing.T) {
	watches, proxies, rounds := 10_000, 100, 20
	if testing.Short() {
		watches, proxies, rounds = 2_000, 20, 8
	}
	engine := newEngine(t, Options{})
	for n := range proxies {
		must(engine.Register(sidecar(fmt.Sprint("p", n), "db")))
	}
	must(engine.WaitReady(shortly(t), proxy("p0"))).Close()
	// The first watch starts the queue's goroutine.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	must(engine.Watch(ctx, proxy("p0")))
	goroutines, threadsBefore := runtime.NumGoroutine(), threads(t)
	channels := make([]<-chan *Snapshot, watches)
	for n := range channels {
		channels[n] = must(engine.Watch(ctx, proxy(fmt.Sprint("p", n%proxies))))
	}
	var memory int
	for round := range rounds {
		index := instance(t, engine, "db", round%4, 1000+round)
		settle(t, engine, index)
		// Every second watch is slow: its channel holds the newest.
		for n, channel := range channels {
			if n%2 == 1 && round < rounds-1 {
				continue
			}
			for {
				snapshot := next(t, channel)
				got := snapshot.Index()
				snapshot.Close()
				if got >= index {
					break
				}
			}
		}
		if round == rounds/2 {
			collect()
			memory = resident(t)
		}
	}
	collect()
	if grown := resident(t) - memory; grown > 32<<20 {
		t.Errorf("memory has grown by %d MB", grown>>20)
	}
	if now := runtime.NumGoroutine(); now > goroutines+2 {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	if now := threads(t); now > threadsBefore+8 {
		t.Errorf("%d threads, %d before", now, threadsBefore)
	}
	cancel()
	eventually(t, "all watches end", func() bool { return must(engine.Status(proxy("p0"))).Watchers == 0 })
}
