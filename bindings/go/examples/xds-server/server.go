package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	proxycfg "github.com/proxycfg/proxycfg/bindings/go"
)

// server is an xDS server. Each Envoy that connects names its proxy as its node's id. While it is connected, the proxy is
// registered (it follows the store's record on our node) and watched, and every snapshot goes into go-control-plane's cache,
// which answers Envoy's streams.
type server struct {
	engine *proxycfg.Engine
	// node is the name of the node that the proxies are on.
	node  string
	cache cachev3.SnapshotCache
	log   *slog.Logger

	mu sync.Mutex
	// streams are the proxies by stream, and proxies what serves them.
	streams map[int64]string
	proxies map[string]*served
}

// served is a proxy that has streams.
type served struct {
	streams int
	cancel  context.CancelFunc
}

func newServer(engine *proxycfg.Engine, node string, log *slog.Logger) *server {
	return &server{
		engine:  engine,
		node:    node,
		cache:   cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil),
		log:     log,
		streams: map[int64]string{},
		proxies: map[string]*served{},
	}
}

// register adds the discovery service to a gRPC server.
func (s *server) register(ctx context.Context, server *grpc.Server) {
	callbacks := serverv3.CallbackFuncs{
		StreamDeltaRequestFunc: func(stream int64, request *discoveryv3.DeltaDiscoveryRequest) error {
			if problem := request.GetErrorDetail(); problem != nil {
				s.log.Error("Envoy refused a response", "type", request.GetTypeUrl(), "problem", problem.GetMessage())
			}
			return s.opened(stream, request.GetNode().GetId())
		},
		DeltaStreamClosedFunc: func(stream int64, _ *corev3.Node) { s.ended(stream) },
	}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, s.cache, callbacks))
}

// opened is called with every request; the first of a stream says which proxy it is for.
func (s *server) opened(stream int64, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.streams[stream]; known || id == "" {
		return nil
	}
	proxy, known := s.proxies[id]
	if !known {
		ctx, cancel := context.WithCancel(context.Background())
		if err := s.serve(ctx, id); err != nil {
			cancel()
			return status.Error(codes.InvalidArgument, err.Error())
		}
		proxy = &served{cancel: cancel}
		s.proxies[id] = proxy
	}
	proxy.streams++
	s.streams[stream] = id
	return nil
}

func (s *server) ended(stream int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, known := s.streams[stream]
	if !known {
		return
	}
	delete(s.streams, stream)
	proxy := s.proxies[id]
	if proxy.streams--; proxy.streams > 0 {
		return
	}
	delete(s.proxies, id)
	proxy.cancel()
	if err := s.engine.Deregister(proxycfg.ProxyID{ID: id, Node: s.node}, ""); err != nil {
		s.log.Error("can't deregister", "proxy", id, "error", err)
	}
	s.cache.ClearSnapshot(id)
}

// serve registers a proxy and keeps its snapshot in the cache current until ctx is done.
func (s *server) serve(ctx context.Context, id string) error {
	proxy := proxycfg.ProxyID{ID: id, Node: s.node}
	if _, err := s.engine.Register(proxycfg.Registration{ID: proxy, Kind: proxycfg.ConnectProxy}); err != nil {
		return err
	}
	snapshots, err := s.engine.Watch(ctx, proxy)
	if err != nil {
		return err
	}
	go func() {
		for snapshot := range snapshots {
			resources, err := convert(snapshot)
			index := snapshot.Index()
			snapshot.Close()
			if err == nil {
				err = s.cache.SetSnapshot(ctx, id, resources)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Error("a snapshot can't be served", "proxy", id, "index", index, "error", err)
			}
		}
	}()
	return nil
}

// kinds are the types of resource and an empty message of each.
var kinds = map[string]func() types.Resource{
	proxycfg.ClusterType:  func() types.Resource { return &clusterv3.Cluster{} },
	proxycfg.EndpointType: func() types.Resource { return &endpointv3.ClusterLoadAssignment{} },
	proxycfg.ListenerType: func() types.Resource { return &listenerv3.Listener{} },
	proxycfg.RouteType:    func() types.Resource { return &routev3.RouteConfiguration{} },
	proxycfg.SecretType:   func() types.Resource { return &tlsv3.Secret{} },
}

// convert makes a snapshot of go-control-plane's from one of ours. The resources are finished messages; the cache versions
// each by its content, so Envoy is sent only what changed.
func convert(snapshot *proxycfg.Snapshot) (*cachev3.Snapshot, error) {
	all := map[string][]types.Resource{}
	for kind, empty := range kinds {
		resources, err := snapshot.Resources(kind)
		if err != nil {
			return nil, err
		}
		for _, resource := range resources {
			message := empty()
			if err := proto.Unmarshal(resource.Bytes, message); err != nil {
				return nil, fmt.Errorf("%s %s: %w", kind, resource.Name, err)
			}
			all[kind] = append(all[kind], message)
		}
	}
	return cachev3.NewSnapshot(fmt.Sprint(snapshot.Index()), all)
}
