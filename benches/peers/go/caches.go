package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"
	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/types/known/durationpb"
)

func assignment(service string, endpoints int, healthy bool) *endpoint.ClusterLoadAssignment {
	var all []*endpoint.LbEndpoint
	for e := range endpoints {
		health := core.HealthStatus_HEALTHY
		if e == 0 && !healthy {
			health = core.HealthStatus_UNHEALTHY
		}
		all = append(all, &endpoint.LbEndpoint{HealthStatus: health,
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: address(fmt.Sprintf("10.0.0.%d", e%250), 21000)}}})
	}
	return &endpoint.ClusterLoadAssignment{ClusterName: service, Endpoints: []*endpoint.LocalityLbEndpoints{{LbEndpoints: all}}}
}

func address(ip string, port uint32) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{Address: ip,
		PortSpecifier: &core.SocketAddress_PortValue{PortValue: port}}}}
}

func makeCluster(service string, timeout time.Duration) *cluster.Cluster {
	return &cluster.Cluster{Name: service, ConnectTimeout: durationpb.New(timeout),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: &core.ConfigSource{ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}}}}}
}

// fanOut tells all watchers of a service of one changed endpoint: with go-control-plane's cache, with go-memdb's watch
// channels, and over plain channels, a goroutine each.
func fanOut(s size) {
	fanOutLinear(s)
	fanOutMemdb(s)
	fanOutChannels(s)
}

func fanOutLinear(s size) {
	c := cache.NewLinearCache(resource.EndpointType)
	if err := c.UpdateResource("db", assignment("db", s.endpoints, true)); err != nil {
		fail("%v", err)
	}
	channels := make([]chan cache.Response, s.proxies)
	requests := make([]*cache.Request, s.proxies)
	subscriptions := make([]stream.Subscription, s.proxies)
	take := func(i int) string {
		response := <-channels[i]
		version := must(response.GetVersion())
		requests[i].VersionInfo = version
		subscriptions[i].SetReturnedResources(response.GetReturnedResources())
		return version
	}
	watch := func(i int) { must(c.CreateWatch(requests[i], subscriptions[i], channels[i])) }
	for i := range s.proxies {
		channels[i] = make(chan cache.Response, 1)
		requests[i] = &cache.Request{Node: &core.Node{Id: fmt.Sprint(i)}, TypeUrl: resource.EndpointType, ResourceNames: []string{"db"}}
		subscriptions[i] = stream.NewSotwSubscription([]string{"db"}, true)
		watch(i)
		take(i)
		watch(i)
	}
	check(c.NumWatches("db") == s.proxies, "all watch")
	var times []time.Duration
	for round := range s.rounds {
		changed := assignment("db", s.endpoints, round%2 == 1)
		begin := time.Now()
		if err := c.UpdateResource("db", changed); err != nil {
			fail("%v", err)
		}
		newest := ""
		for i := range s.proxies {
			version := take(i)
			check(i == 0 || version == newest, "all hold the same version")
			newest = version
		}
		times = append(times, time.Since(begin))
		for i := range s.proxies {
			watch(i)
		}
	}
	printTimes("LinearCache", times)
}

type row struct {
	Name    string
	Healthy bool
}

func database() *memdb.MemDB {
	return must(memdb.NewMemDB(&memdb.DBSchema{Tables: map[string]*memdb.TableSchema{"row": {Name: "row", Indexes: map[string]*memdb.IndexSchema{
		"id": {Name: "id", Unique: true, Indexer: &memdb.StringFieldIndex{Field: "Name"}}}}}}))
}

func insert(db *memdb.MemDB, value *row) {
	txn := db.Txn(true)
	if err := txn.Insert("row", value); err != nil {
		fail("%v", err)
	}
	txn.Commit()
}

// rendezvous counts who holds the newest value.
type rendezvous struct {
	held atomic.Int64
	all  chan struct{}
	want int64
}

func (r *rendezvous) holds() {
	if r.held.Add(1) == r.want {
		r.all <- struct{}{}
	}
}

func (r *rendezvous) wait() {
	<-r.all
	check(r.held.Swap(0) == r.want, "all hold the new value")
}

func fanOutMemdb(s size) {
	db := database()
	insert(db, &row{Name: "db", Healthy: true})
	met := rendezvous{all: make(chan struct{}, 1), want: int64(s.proxies)}
	stop := make(chan struct{})
	for range s.proxies {
		go func() {
			var last *row
			for {
				watch, found, err := db.Txn(false).FirstWatch("row", "id", "db")
				if err != nil {
					fail("%v", err)
				}
				if now := found.(*row); now != last {
					last = now
					met.holds()
				}
				select {
				case <-watch:
				case <-stop:
					return
				}
			}
		}()
	}
	met.wait()
	var times []time.Duration
	for round := range s.rounds {
		begin := time.Now()
		insert(db, &row{Name: "db", Healthy: round%2 == 1})
		met.wait()
		times = append(times, time.Since(begin))
	}
	close(stop)
	printTimes("go-memdb watches", times)
}

func fanOutChannels(s size) {
	met := rendezvous{all: make(chan struct{}, 1), want: int64(s.proxies)}
	channels := make([]chan *row, s.proxies)
	for i := range channels {
		channels[i] = make(chan *row, 1)
		go func() {
			for value := range channels[i] {
				check(value != nil, "a value")
				met.holds()
			}
		}()
	}
	var times []time.Duration
	for round := range s.rounds {
		begin := time.Now()
		value := &row{Name: "db", Healthy: round%2 == 1}
		for _, channel := range channels {
			channel <- value
		}
		met.wait()
		times = append(times, time.Since(begin))
	}
	for _, channel := range channels {
		close(channel)
	}
	printTimes("channels", times)
}

// herd rebuilds all snapshots of a SnapshotCache, as a change of a default makes necessary, on all cores.
func herd(s size) {
	m := newSnapshots(s)
	m.setAll(1, 5*time.Second)
	for version, metric := range []string{2: "time", 3: "intention"} {
		if metric == "" {
			continue
		}
		begin := time.Now()
		m.setAll(version, time.Duration(version)*time.Second)
		took := time.Since(begin)
		for p := range s.proxies {
			snapshot := must(m.cache.GetSnapshot(fmt.Sprint(p)))
			clusters := snapshot.GetResources(resource.ClusterType)
			check(snapshot.GetVersion(resource.ClusterType) == fmt.Sprint(version) && len(clusters) == s.upstreams, "rebuilt")
		}
		print("SnapshotCache", metric, float64(took.Nanoseconds())/1e6, "ms")
	}
}

// snapshots is a SnapshotCache with the snapshots of all proxies. The clusters and endpoints of a service are equal for all
// proxies here: they are shared between them.
type snapshots struct {
	size
	cache       cache.SnapshotCache
	assignments []types.Resource
	clusters    []types.Resource
}

func newSnapshots(s size) *snapshots {
	m := &snapshots{size: s, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil), assignments: make([]types.Resource, s.services), clusters: make([]types.Resource, s.services)}
	for i := range m.assignments {
		m.assignments[i] = assignment(fmt.Sprintf("s%d", i), s.endpoints, true)
	}
	return m
}

// dials is the service that a proxy's upstream leads to.
func (m *snapshots) dials(p, u int) int {
	return (p*7 + u*13) % m.services
}

func (m *snapshots) set(p, version int) {
	var dials, loads, listeners []types.Resource
	for u := range m.upstreams {
		service := m.dials(p, u)
		dials = append(dials, m.clusters[service])
		loads = append(loads, m.assignments[service])
		listeners = append(listeners, &listener.Listener{Name: fmt.Sprintf("s%d", service), Address: address("127.0.0.1", uint32(9001+u))})
	}
	snapshot := must(cache.NewSnapshot(fmt.Sprint(version), map[resource.Type][]types.Resource{
		resource.ClusterType: dials, resource.EndpointType: loads, resource.ListenerType: listeners}))
	if err := m.cache.SetSnapshot(context.Background(), fmt.Sprint(p), snapshot); err != nil {
		fail("%v", err)
	}
}

func (m *snapshots) setAll(version int, timeout time.Duration) {
	for i := range m.clusters {
		m.clusters[i] = makeCluster(fmt.Sprintf("s%d", i), timeout)
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for p := next.Add(1) - 1; p < int64(m.proxies); p = next.Add(1) - 1 {
				m.set(int(p), version)
			}
		})
	}
	group.Wait()
}

// register inserts proxies into a go-memdb, one transaction each.
func register(s size) {
	db := database()
	begin := time.Now()
	for p := range s.proxies {
		insert(db, &row{Name: fmt.Sprint("p", p)})
	}
	took := time.Since(begin)
	n := 0
	for all := must(db.Txn(false).Get("row", "id")); all.Next() != nil; n++ {
	}
	check(n == s.proxies, "inserted")
	print("go-memdb insert", "registration", float64(took.Nanoseconds())/1e3/float64(s.proxies), "us")
}

// memory is what a proxy costs in a SnapshotCache: at first, and after a thousand changes of an endpoint.
func memory(s size) {
	before := heap()
	m := newSnapshots(s)
	m.setAll(1, 5*time.Second)
	grown := func(metric string) {
		print("SnapshotCache", metric, float64(heap()-before)/float64(s.proxies), "B")
	}
	grown("a proxy")
	check(len(must(m.cache.GetSnapshot(fmt.Sprint(s.proxies-1))).GetResources(resource.ClusterType)) == s.upstreams, "built")
	diallers := make([][]int, s.services)
	for p := range s.proxies {
		for u := range s.upstreams {
			service := m.dials(p, u)
			diallers[service] = append(diallers[service], p)
		}
	}
	for change := range 1000 {
		service := change / 2 * 3 % s.services
		m.assignments[service] = assignment(fmt.Sprintf("s%d", service), s.endpoints, change%2 == 1)
		for _, p := range diallers[service] {
			m.set(p, change+2)
		}
	}
	grown("after changes")
	runtime.KeepAlive(m)
}
