// Command peers does the work of the rows of benches/compare in the way of other programs, and prints what it cost: one
// JSON line a peer, e.g. {"peer_name": "LinearCache", "peer": 12.5, "metric": "p50", "unit": "ms"}.
//
// Every row checks that its work happened, and ends the program if it didn't.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// size is the shape of a row's work.
type size struct {
	proxies, upstreams, endpoints, services, rounds int
}

var rows = map[string]func(size){
	"handle":        handle,
	"next-snapshot": nextSnapshot,
	"gateway":       nextSnapshot,
	"fan-out":       fanOut,
	"herd":          herd,
	"register":      register,
	"memory":        memory,
}

func main() {
	var s size
	row := flag.String("row", "", "which row; serve is a server, for rows in which another program does the work")
	resources := flag.String("resources", "", "what to serve: a file that our load generator wrote")
	flag.IntVar(&s.proxies, "proxies", 1000, "proxies")
	flag.IntVar(&s.upstreams, "upstreams", 10, "upstreams of each proxy")
	flag.IntVar(&s.endpoints, "endpoints", 10, "endpoints of each service")
	flag.IntVar(&s.services, "services", 1000, "services")
	flag.IntVar(&s.rounds, "rounds", 50, "how often")
	flag.Parse()
	if *row == "serve" {
		serve(*resources)
		return
	}
	run, ok := rows[*row]
	if !ok {
		fail("no row %q", *row)
	}
	run(s)
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "peers: "+format+"\n", args...)
	os.Exit(1)
}

func must[T any](value T, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return value
}

func check(ok bool, what string) {
	if !ok {
		fail("the work didn't happen: %s", what)
	}
}

func print(peer, metric string, value float64, unit string) {
	line := must(json.Marshal(map[string]any{"peer_name": peer, "metric": metric, "peer": value, "unit": unit}))
	fmt.Println(string(line))
}

func percentile(times []time.Duration, p int) time.Duration {
	slices.Sort(times)
	return times[min(len(times)*p/100, len(times)-1)]
}

func printTimes(peer string, times []time.Duration) {
	for _, p := range []int{50, 99} {
		print(peer, fmt.Sprintf("p%d", p), float64(percentile(times, p).Nanoseconds())/1e6, "ms")
	}
}

// each is the time of one call, from enough calls to fill a fifth of a second.
func each(work func(i int)) time.Duration {
	work(0)
	for n := 1; ; n *= 4 {
		begin := time.Now()
		for i := range n {
			work(i)
		}
		if took := time.Since(begin); took > 200*time.Millisecond {
			return took / time.Duration(n)
		}
	}
}

// heap is the live heap in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
