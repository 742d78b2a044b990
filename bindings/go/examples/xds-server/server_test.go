package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	proxycfg "github.com/proxycfg/proxycfg/bindings/go"
)

const patience = 60 * time.Second

// envoy is the path of an Envoy binary.
func envoy(t *testing.T) string {
	script := exec.Command("../../../../.ci/envoy")
	script.Stderr = os.Stderr
	path, err := script.Output()
	if err != nil {
		t.Fatal(".ci/envoy:", err)
	}
	return strings.TrimSpace(string(path))
}

// freePort is a port that nobody listens on at the moment.
func freePort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// startEnvoy runs an Envoy as a proxy until the end of the test.
func startEnvoy(t *testing.T, binary, id string, xds net.Addr) {
	t.Helper()
	host, port, _ := net.SplitHostPort(xds.String())
	bootstrap := fmt.Sprintf(`
node: {id: %s, cluster: example}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config: {api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}]}]
`, id, host, port)
	var log bytes.Buffer
	process := exec.Command(binary, "--config-yaml", bootstrap, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
	process.Stdout, process.Stderr = &log, &log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("Envoy %s:\n%s", id, log.String())
		}
	})
}

// fetch gets the text behind a port of this machine, on a connection of its own.
func fetch(port int) (string, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s didn't come true", what)
		}
	}
}

func TestARealEnvoyCarriesTraffic(t *testing.T) {
	binary := envoy(t)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello from db")
	}))
	defer app.Close()
	appPort := app.Listener.Addr().(*net.TCPAddr).Port
	dbPort, webPort, upstreamPort := freePort(t), freePort(t), freePort(t)

	engine, err := proxycfg.New(proxycfg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	apply := func(ops ...any) {
		t.Helper()
		transaction, err := json.Marshal(map[string]any{"Ops": ops})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Apply(transaction); err != nil {
			t.Fatal(err)
		}
	}
	type object = map[string]any
	register := func(service object) object {
		return object{"Register": object{"Node": "node-1", "Address": "127.0.0.1", "Service": service}}
	}
	apply(
		register(object{"Service": "db", "Port": appPort}),
		register(object{"Kind": "connect-proxy", "Service": "db-sidecar-proxy", "Port": dbPort, "Proxy": object{
			"DestinationServiceName": "db", "DestinationServiceID": "db", "LocalServicePort": appPort,
		}}),
		register(object{"Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Port": webPort, "Proxy": object{
			"DestinationServiceName": "web",
			"Upstreams":              []any{object{"DestinationName": "db", "LocalBindPort": upstreamPort}},
		}}),
	)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	refused := &lines{}
	grpcServer := grpc.NewServer()
	defer grpcServer.Stop()
	xds := newServer(engine, "node-1", slog.New(slog.NewTextHandler(refused, nil)))
	xds.register(ctx, grpcServer)
	go func() { _ = grpcServer.Serve(listener) }()

	startEnvoy(t, binary, "db-sidecar-proxy", listener.Addr())
	startEnvoy(t, binary, "web-sidecar-proxy", listener.Addr())
	answers := func() bool { text, err := fetch(upstreamPort); return err == nil && text == "hello from db" }
	eventually(t, "web reaches db", answers)

	// A change reaches the Envoys: nobody may call db, then web again.
	intention := func(action string) object {
		return object{"Config": object{"Kind": "service-intentions", "Name": "db", "Sources": []any{object{"Name": "web", "Action": action}}}}
	}
	apply(intention("deny"))
	eventually(t, "web is kept from db", func() bool { return !answers() })
	apply(intention("allow"))
	eventually(t, "web reaches db again", answers)

	proxies, err := engine.Proxies("host")
	if err != nil || len(proxies) != 2 || !proxies[0].Ready || !proxies[1].Ready {
		t.Fatal(proxies, err)
	}
	if text := refused.String(); text != "" {
		t.Fatal(text)
	}
	// With the Envoys gone the proxies are, too.
	grpcServer.Stop()
	eventually(t, "the proxies are deregistered", func() bool {
		proxies, err := engine.Proxies("host")
		return err == nil && len(proxies) == 0
	})
}

func TestTheProgramStartsAndStops(t *testing.T) {
	records := filepath.Join(t.TempDir(), "records.json")
	if err := os.WriteFile(records, []byte(`{"Ops": [{"Confg": {}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run("127.0.0.1:0", records, "node-1"); err == nil || !strings.Contains(err.Error(), "did you mean Config?") {
		t.Fatal(err)
	}
	if err := os.WriteFile(records, []byte(`{"Ops": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// Before the program listens for it, the signal must not end the test.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGTERM)
	defer signal.Stop(ignored)
	ended := make(chan error, 1)
	go func() { ended <- run("127.0.0.1:0", records, "node-1") }()
	for {
		// SIGTERM ends it, as soon as it listens for it.
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-time.After(100 * time.Millisecond):
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// lines is a log that can be read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
