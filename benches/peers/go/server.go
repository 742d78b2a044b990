package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tls "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// serve runs go-control-plane's server with the resources that our server gave its proxies, read from a file. Endpoints are
// in a LinearCache, where one update reaches all who ask for them; everything else is in a SnapshotCache, equal resources
// once for all proxies. Prints its addresses when it is ready. `PUT /change?service=s0&address=A` gives the first instance of
// a service another address.
func serve(file string) {
	endpoints := cache.NewLinearCache(resource.EndpointType)
	rest := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	assignments := load(file, rest)
	for name, assignment := range assignments {
		if err := endpoints.UpdateResource(name, assignment); err != nil {
			fail("%v", err)
		}
	}
	caches := &cache.MuxCache{
		Classify:      func(r *cache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{resource.EndpointType: endpoints, resource.ClusterType: rest, resource.ListenerType: rest,
			resource.RouteType: rest, resource.SecretType: rest},
	}
	xds := must(net.Listen("tcp", "127.0.0.1:0"))
	control := must(net.Listen("tcp", "127.0.0.1:0"))
	transport := grpc.NewServer(grpc.MaxConcurrentStreams(100))
	discovery.RegisterAggregatedDiscoveryServiceServer(transport, server.NewServer(context.Background(), caches, nil))
	go func() { fail("xDS: %v", transport.Serve(xds)) }()

	var changing sync.Mutex
	http.HandleFunc("PUT /change", func(w http.ResponseWriter, r *http.Request) {
		changing.Lock()
		defer changing.Unlock()
		name := ""
		for candidate := range assignments {
			if strings.HasPrefix(candidate, r.FormValue("service")+".") {
				name = candidate
			}
		}
		if name == "" {
			http.Error(w, "no such service", http.StatusNotFound)
			return
		}
		changed := proto.Clone(assignments[name]).(*endpoint.ClusterLoadAssignment)
		if !readdress(changed, r.FormValue("address")) {
			http.Error(w, "it has no such instance", http.StatusNotFound)
			return
		}
		assignments[name] = changed
		if err := endpoints.UpdateResource(name, changed); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Println(string(must(json.Marshal(map[string]string{"xds": xds.Addr().String(), "http": control.Addr().String()}))))
	fail("HTTP: %v", http.Serve(control, nil))
}

// readdress changes the instance whose address says that it is the one to be changed.
func readdress(assignment *endpoint.ClusterLoadAssignment, address string) bool {
	mark := address[:strings.LastIndex(address[:max(strings.LastIndex(address, ":"), 0)], ":")+1]
	for _, locality := range assignment.GetEndpoints() {
		for _, instance := range locality.GetLbEndpoints() {
			socket := instance.GetEndpoint().GetAddress().GetSocketAddress()
			if mark != "" && strings.HasPrefix(socket.GetAddress(), mark) {
				socket.Address = address
				return true
			}
		}
	}
	return false
}

// load reads resources and who has which of them, a JSON object a line; returns the endpoint assignments by name.
func load(file string, into cache.SnapshotCache) map[string]*endpoint.ClusterLoadAssignment {
	kinds := map[string]func() types.Resource{
		resource.ClusterType:  func() types.Resource { return &cluster.Cluster{} },
		resource.EndpointType: func() types.Resource { return &endpoint.ClusterLoadAssignment{} },
		resource.ListenerType: func() types.Resource { return &listener.Listener{} },
		resource.RouteType:    func() types.Resource { return &route.RouteConfiguration{} },
		resource.SecretType:   func() types.Resource { return &tls.Secret{} },
	}
	var all []types.Resource
	var urls []string
	assignments := map[string]*endpoint.ClusterLoadAssignment{}
	nodes := 0
	lines := bufio.NewScanner(must(os.Open(file)))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct {
			Type, Name, Node string
			Value            []byte
			Resources        []int
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			fail("%s: %v", file, err)
		}
		if line.Node == "" {
			read, ok := kinds[line.Type]
			if !ok {
				fail("%s: type %q", file, line.Type)
			}
			message := read()
			if err := proto.Unmarshal(line.Value, message); err != nil {
				fail("%s: %v", line.Name, err)
			}
			if assignment, ok := message.(*endpoint.ClusterLoadAssignment); ok {
				assignments[line.Name] = assignment
			}
			all, urls = append(all, message), append(urls, line.Type)
			continue
		}
		of := map[resource.Type][]types.Resource{}
		for _, number := range line.Resources {
			if urls[number] != resource.EndpointType {
				of[urls[number]] = append(of[urls[number]], all[number])
			}
		}
		if err := into.SetSnapshot(context.Background(), line.Node, must(cache.NewSnapshot("1", of))); err != nil {
			fail("%v", err)
		}
		nodes++
	}
	if err := lines.Err(); err != nil {
		fail("%s: %v", file, err)
	}
	check(nodes > 0 && len(assignments) > 0, "resources were read")
	return assignments
}
