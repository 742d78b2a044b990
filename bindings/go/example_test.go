package proxycfg_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"

	proxycfg "github.com/proxycfg/proxycfg/bindings/go"
)

const dbInstance = `{"Ops": [{"Register": {"Node": "node-1", "Address": "10.0.0.1", "Service": {
	"Kind": "connect-proxy", "Service": "db-sidecar-proxy", "Port": 21000,
	"Proxy": {"DestinationServiceName": "db"}}}}]}`

const webSidecar = `{"Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Port": 21000, "Proxy": {
	"DestinationServiceName": "web", "LocalServicePort": 8080,
	"Upstreams": [{"DestinationName": "db", "LocalBindPort": 9191}]}}`

// The complete loop: write records, register a proxy, watch it, read its snapshot, shut down.
func Example() {
	engine, err := proxycfg.New(proxycfg.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	if _, err := engine.Apply([]byte(dbInstance)); err != nil {
		log.Fatal(err)
	}
	if _, err := engine.Register(proxycfg.Registration{Definition: []byte(webSidecar)}); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	snapshots, err := engine.Watch(ctx, proxycfg.ProxyID{ID: "web-sidecar-proxy"})
	if err != nil {
		log.Fatal(err)
	}
	for snapshot := range snapshots {
		service, err := snapshot.Pointer("/ConnectProxy/Upstreams/db/DiscoveryChain/ServiceName")
		if err != nil {
			log.Fatal(err)
		}
		listeners, err := snapshot.Resources(proxycfg.ListenerType)
		if err != nil {
			log.Fatal(err)
		}
		snapshot.Close()
		fmt.Printf("dials %s, has %d listeners\n", service, len(listeners))
		// Ends the watch, and with it the loop.
		cancel()
	}
	// Output: dials "db", has 2 listeners
}

func ExampleEngine_Proxies() {
	engine, err := proxycfg.New(proxycfg.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	// A proxy that follows a record of the store, which isn't there yet.
	if _, err := engine.Register(proxycfg.Registration{
		ID:   proxycfg.ProxyID{ID: "api-sidecar-proxy", Node: "node-7"},
		Kind: proxycfg.ConnectProxy,
	}); err != nil {
		log.Fatal(err)
	}
	proxies, err := engine.Proxies("host")
	if err != nil {
		log.Fatal(err)
	}
	for _, proxy := range proxies {
		fmt.Println(proxy.ID, "on", proxy.Node, "is ready:", proxy.Ready)
	}
	// Output: api-sidecar-proxy on node-7 is ready: false
}

func ExampleSnapshot_Diff() {
	engine, err := proxycfg.New(proxycfg.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	if _, err := engine.Register(proxycfg.Registration{Definition: []byte(webSidecar)}); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	id := proxycfg.ProxyID{ID: "web-sidecar-proxy"}
	before, err := engine.WaitReady(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	defer before.Close()
	index, err := engine.Apply([]byte(dbInstance))
	if err != nil {
		log.Fatal(err)
	}
	if err := engine.WaitIndex(ctx, index); err != nil {
		log.Fatal(err)
	}
	after, err := engine.WaitReady(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	defer after.Close()
	changes, err := before.Diff(after)
	if err != nil {
		log.Fatal(err)
	}
	for _, change := range changes {
		fmt.Println(change.Change, change.Upstream)
	}
	// Output: upstream-endpoints db
}

// inventory is a program's own list of instances, which answers queries for endpoints.
type inventory map[string]string

func (i inventory) Subscribe(query proxycfg.Query, to *proxycfg.Answerer) {
	var asked struct{ Service string }
	if err := json.Unmarshal(query.JSON, &asked); err != nil {
		_ = to.Error(query.Subscription, err)
		return
	}
	endpoints := []any{}
	if address, ok := i[asked.Service]; ok {
		endpoints = append(endpoints, map[string]any{"Node": "mine", "ServiceID": asked.Service, "Address": address, "Port": 5432})
	}
	answer, _ := json.Marshal(endpoints)
	if err := to.Answer(query.Subscription, answer); err != nil {
		_ = to.Error(query.Subscription, err)
	}
}

func (inventory) Unsubscribe(uint64) {}

// A program that owns some of the data answers those queries itself; everything else comes from the engine's store.
func ExampleSource() {
	engine, err := proxycfg.New(proxycfg.Options{
		Source:      inventory{"db": "192.168.1.7"},
		SourceKinds: []proxycfg.QueryKind{proxycfg.EndpointsQuery},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	if _, err := engine.Register(proxycfg.Registration{Definition: []byte(webSidecar)}); err != nil {
		log.Fatal(err)
	}
	snapshots, err := engine.Watch(context.Background(), proxycfg.ProxyID{ID: "web-sidecar-proxy"})
	if err != nil {
		log.Fatal(err)
	}
	for snapshot := range snapshots {
		endpoints, err := snapshot.Pointer("/ConnectProxy/Upstreams/db/Endpoints")
		snapshot.Close()
		if err == nil && strings.Contains(string(endpoints), "192.168.1.7") {
			fmt.Println("web dials the instance of the inventory")
			break
		}
	}
	// Output: web dials the instance of the inventory
}
