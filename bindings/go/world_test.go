package proxycfg

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long a condition may take before a test fails.
const patience = 60 * time.Second

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func newEngine(t testing.TB, options Options) *Engine {
	t.Helper()
	engine, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

func shortly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// sidecar is the registration of a sidecar that dials services on ports from 9000.
func sidecar(id string, dials ...string) Registration {
	upstreams := []any{}
	for n, service := range dials {
		upstreams = append(upstreams, map[string]any{"DestinationName": service, "LocalBindPort": 9000 + n})
	}
	definition := must(json.Marshal(map[string]any{
		"Kind": "connect-proxy", "ID": id, "Service": "web-sidecar-proxy", "Port": 21000,
		"Proxy": map[string]any{"DestinationServiceName": "web", "Upstreams": upstreams},
	}))
	return Registration{ID: ProxyID{ID: id, Node: "node"}, Definition: definition}
}

func proxy(id string) ProxyID { return ProxyID{ID: id, Node: "node"} }

// instance writes an instance of a service.
func instance(t testing.TB, engine *Engine, service string, n, port int) uint64 {
	t.Helper()
	index, err := engine.Apply(fmt.Appendf(nil, `{"Ops": [{"Register": {"Node": "%s-%d", "Address": "10.0.0.%d", "Service":
		{"Kind": "connect-proxy", "Service": "%s-sidecar-proxy", "Port": %d, "Proxy": {"DestinationServiceName": "%s"}}}}]}`,
		service, n, n%250+1, service, port, service))
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func settle(t testing.TB, engine *Engine, index uint64) {
	t.Helper()
	if err := engine.WaitIndex(shortly(t), index); err != nil {
		t.Fatal(err)
	}
}

func next(t testing.TB, snapshots <-chan *Snapshot) *Snapshot {
	t.Helper()
	select {
	case snapshot, ok := <-snapshots:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return snapshot
	case <-time.After(patience):
		t.Fatal("no snapshot came")
	}
	return nil
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s didn't come true", what)
		}
	}
}

// threads is the number of threads of this process.
func threads(t testing.TB) int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip("threads can only be counted on Linux")
	}
	return len(tasks)
}

// resident is the memory of this process in bytes.
func resident(t testing.TB) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("memory can only be measured on Linux")
	}
	for line := range strings.Lines(string(status)) {
		var kilobytes int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// collect has the garbage collector run and cleanups with it.
func collect() {
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}
