// Command xds-server is a control plane in Go: proxycfg keeps the snapshots, go-control-plane speaks to Envoy.
//
//	xds-server -records records.json -node node-1
//
// It reads a transaction (services, sidecars, config entries: see the package's Apply) and serves every Envoy whose node id
// is the id of a sidecar on the given node, over incremental ADS. On SIGHUP it reads the file again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"

	proxycfg "github.com/proxycfg/proxycfg/bindings/go"
)

func main() {
	address := flag.String("addr", "127.0.0.1:18000", "address to serve xDS on")
	records := flag.String("records", "", "file with a transaction, as JSON")
	node := flag.String("node", "", "node that the proxies are on")
	flag.Parse()
	if err := run(*address, *records, *node); err != nil {
		fmt.Fprintln(os.Stderr, "xds-server:", err)
		os.Exit(1)
	}
}

func run(address, records, node string) error {
	log := slog.Default()
	if err := proxycfg.SetLogger(log); err != nil {
		return err
	}
	engine, err := proxycfg.New(proxycfg.Options{Logger: log})
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := load(engine, records); err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	newServer(engine, node, log).register(ctx, server)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	go func() {
		for range reload {
			if err := load(engine, records); err != nil {
				log.Error("the records stay as they were", "error", err)
			}
		}
	}()
	log.Info("serving", "address", listener.Addr().String())
	return server.Serve(listener)
}

func load(engine *proxycfg.Engine, records string) error {
	transaction, err := os.ReadFile(records)
	if err != nil {
		return err
	}
	_, err = engine.Apply(transaction)
	return err
}
