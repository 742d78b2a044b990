package proxycfg

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeSource notes who asks, and answers when told to.
type fakeSource struct {
	mu       sync.Mutex
	live     map[uint64]Query
	answerer *Answerer
	refresh  int
	// atOnce answers within Subscribe.
	atOnce func(Query, *Answerer)
}

func (s *fakeSource) Subscribe(query Query, to *Answerer) {
	s.mu.Lock()
	if s.live == nil {
		s.live = map[uint64]Query{}
	}
	s.live[query.Subscription] = query
	s.answerer = to
	s.mu.Unlock()
	if s.atOnce != nil {
		s.atOnce(query, to)
	}
}

func (s *fakeSource) Unsubscribe(subscription uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, subscription)
}

func (s *fakeSource) Refresh(uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh++
}

func (s *fakeSource) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

func (s *fakeSource) of(t *testing.T, kind QueryKind) (Query, *Answerer) {
	t.Helper()
	var found Query
	eventually(t, "a subscription", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, query := range s.live {
			if query.Kind == kind {
				found = query
				return true
			}
		}
		return false
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return found, s.answerer
}

func endpoint(n int) []byte {
	return fmt.Appendf(nil, `[{"Node": "x", "ServiceID": "db", "Address": "10.1.1.%d", "Port": 1}]`, n)
}

func intention(n int) []byte {
	return fmt.Appendf(nil, `[{"SourceName": "api%d", "DestinationName": "web", "Action": "allow", "Precedence": 9}]`, n)
}

func TestAHostAnswersItself(t *testing.T) {
	source := &fakeSource{}
	engine := newEngine(t, Options{Source: source, SourceKinds: []QueryKind{EndpointsQuery, IntentionsQuery}, Linger: 1})
	registration := sidecar("web", "db")
	registration.ID.Token = "secret"
	must(engine.Register(registration))
	snapshots := must(engine.Watch(shortly(t), registration.ID))
	intentions, to := source.of(t, IntentionsQuery)
	if intentions.Token != "secret" {
		t.Fatal(intentions.Token)
	}
	var asked struct{ Kind, Service string }
	if err := json.Unmarshal(intentions.JSON, &asked); err != nil || asked.Kind != "intentions" || asked.Service != "web" {
		t.Fatal(string(intentions.JSON), err)
	}
	if err := to.Answer(intentions.Subscription, []byte(`[{"SourceNam": "x"}]`)); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "did you mean SourceName?") {
		t.Fatal(err)
	}
	if err := to.Error(intentions.Subscription, errors.New("the database is away")); err != nil {
		t.Fatal(err)
	}
	endpoints, _ := source.of(t, EndpointsQuery)
	for n := range 50 {
		if err := to.AnswerAll([]Answer{
			{intentions.Subscription, intention(n)},
			{endpoints.Subscription, endpoint(n)},
		}); err != nil {
			t.Fatal(err)
		}
		for {
			snapshot := next(t, snapshots)
			who := string(must(snapshot.Pointer("/ConnectProxy/Intentions")))
			where := string(must(snapshot.Pointer("/ConnectProxy/Upstreams/db/Endpoints")))
			snapshot.Close()
			haveWho := strings.Contains(who, fmt.Sprintf("api%d\"", n))
			haveWhere := strings.Contains(where, fmt.Sprintf("10.1.1.%d\"", n))
			if haveWho != haveWhere {
				t.Fatalf("half of a step: %s %s", who, where)
			}
			if haveWho {
				break
			}
		}
	}
	if err := to.AnswerAll([]Answer{{intentions.Subscription, []byte("[]")}, {endpoints.Subscription, nil}}); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	if err := to.AnswerAll(nil); err != nil {
		t.Fatal(err)
	}
	if err := engine.Deregister(registration.ID, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody asks any more", func() bool { return source.count() == 0 })
	if err := to.Answer(endpoints.Subscription, endpoint(1)); err != nil {
		t.Fatal("a late answer is ignored, not an error:", err)
	}
	if err := to.Answer(1<<40, endpoint(1)); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	must(engine.Register(registration))
	intentions, _ = source.of(t, IntentionsQuery)
	if err := to.TokenInvalid(intentions.Subscription, errors.New("revoked")); err != nil {
		t.Fatal(err)
	}
	for snapshot := range snapshots {
		snapshot.Close()
	}
	if status := must(engine.Status(registration.ID)); !strings.Contains(status.Ended, "revoked") {
		t.Fatal(status)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if err := to.Answer(1, endpoint(1)); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestAPanicOfASourceIsTheQuerysError(t *testing.T) {
	logged := &notes{}
	panics := true
	var mu sync.Mutex
	source := &fakeSource{}
	source.atOnce = func(query Query, to *Answerer) {
		mu.Lock()
		defer mu.Unlock()
		if panics && query.Kind == EndpointsQuery {
			panic("by intent")
		}
		if err := to.Answer(query.Subscription, []byte("[]")); err != nil {
			t.Error(err)
		}
	}
	engine := newEngine(t, Options{Source: source, SourceKinds: []QueryKind{EndpointsQuery, IntentionsQuery}, Logger: logged.logger()})
	must(engine.Register(sidecar("web", "db")))
	eventually(t, "the error is shown", func() bool {
		return strings.Contains(fmt.Sprint(must(engine.Status(proxy("web"))).WaitingFor), "the source panicked: by intent")
	})
	if !strings.Contains(logged.text(), "by intent") {
		t.Fatal(logged.text())
	}
	endpoints, to := source.of(t, EndpointsQuery)
	if err := to.Answer(endpoints.Subscription, endpoint(1)); err != nil {
		t.Fatal(err)
	}
	must(engine.WaitReady(shortly(t), proxy("web"))).Close()
}

// A host may own everything: what one engine computed from its store comes out of another, which is told all of it.
func TestAHostMayAnswerEveryKindOfQuery(t *testing.T) {
	one := newEngine(t, Options{})
	registration := sidecar("web", "db")
	must(one.Apply([]byte(`{"Ops": [{"Config": {"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "api", "Action": "allow"}]}}]}`)))
	index := instance(t, one, "db", 1, 5432)
	must(one.Register(registration))
	must(one.WaitReady(shortly(t), proxy("web"))).Close()
	settle(t, one, index)
	wanted := must(one.WaitReady(shortly(t), proxy("web")))
	part := func(pointer string) []byte { return must(wanted.Pointer(pointer)) }
	var targets map[string]json.RawMessage
	if err := json.Unmarshal(part("/ConnectProxy/Upstreams/db/Endpoints"), &targets); err != nil {
		t.Fatal(err)
	}
	var roots struct{ TrustDomain string }
	if err := json.Unmarshal(part("/Roots"), &roots); err != nil {
		t.Fatal(err)
	}
	chain, key := certificate(t)
	answers := map[QueryKind][]byte{
		CARootsQuery: part("/Roots"),
		LeafQuery: must(json.Marshal(map[string]any{
			"SerialNumber": "1", "CertPEM": chain, "PrivateKeyPEM": key,
			"ServiceURI": "spiffe://" + roots.TrustDomain + "/ns/default/dc/dc1/svc/web",
			"ValidAfter": "2020-01-01T00:00:00Z", "ValidBefore": "2090-01-01T00:00:00Z",
		})),
		IntentionsQuery:    part("/ConnectProxy/Intentions"),
		MeshQuery:          []byte("null"),
		JWTProvidersQuery:  []byte("[]"),
		ChainQuery:         part("/ConnectProxy/Upstreams/db/DiscoveryChain"),
		EndpointsQuery:     targets["db.default.default.dc1"],
		ServiceConfigQuery: []byte("{}"),
		ServiceRecordQuery: registration.Definition,
		ExposedChecksQuery: []byte("{}"),
	}
	source := &fakeSource{atOnce: func(query Query, to *Answerer) {
		if err := to.Answer(query.Subscription, answers[query.Kind]); err != nil {
			t.Error(err)
		}
	}}
	kinds := []QueryKind{}
	for kind := range answers {
		kinds = append(kinds, kind)
	}
	other := newEngine(t, Options{Source: source, SourceKinds: kinds})
	// It follows the record, which is the host's.
	must(other.Register(Registration{ID: proxy("web"), Kind: ConnectProxy}))
	// The first snapshot may have come before the endpoints did.
	var got *Snapshot
	eventually(t, "the endpoints come", func() bool {
		got = must(other.WaitReady(shortly(t), proxy("web")))
		return strings.Contains(string(must(got.Pointer("/ConnectProxy/Upstreams"))), "10.0.0.2")
	})
	for _, pointer := range []string{
		"/Roots", "/Proxy", "/ConnectProxy/Intentions", "/ConnectProxy/MeshConfig", "/ConnectProxy/JWTProviders", "/ConnectProxy/Upstreams",
	} {
		if a, b := string(part(pointer)), string(must(got.Pointer(pointer))); a != b {
			t.Errorf("%s:\n%s\n%s", pointer, a, b)
		}
	}
	if text := string(must(got.JSON())); !strings.Contains(text, "BEGIN CERTIFICATE") || strings.Contains(text, "BEGIN PRIVATE KEY") {
		t.Error("the certificate is shown, its key isn't:", text)
	}
	// The key is in the secret, which Envoy needs it for.
	secrets := must(got.Resources(SecretType))
	found := false
	for _, secret := range secrets {
		found = found || strings.Contains(string(secret.Bytes), key)
	}
	if !found || len(must(got.Problems())) > 0 {
		t.Error("the key isn't in a secret", must(got.Problems()))
	}
}

// certificate is a certificate and its key, as PEM.
func certificate(t *testing.T) (string, string) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	block := func(kind string, bytes []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
}

// notes is a log that can be read.
type notes struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (n *notes) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lines.Write(line)
}

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lines.String()
}

func (n *notes) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func TestTheLibrarysLogGoesToSlog(t *testing.T) {
	logged := &notes{}
	if err := SetLogger(logged.logger()); err != nil {
		t.Fatal(err)
	}
	engine := newEngine(t, Options{})
	must(engine.Apply([]byte(`{"Ops": [{"Register": {"Node": "n", "Address": "1.1.1.1", "Service": {"Service": "s",
		"Connect": {"PeerMeta": {"A": 1}}}}}]}`)))
	eventually(t, "a line", func() bool {
		text := logged.text()
		return strings.Contains(text, "level=WARN") && strings.Contains(text, "PeerMeta") && strings.Contains(text, "target=proxycfg")
	})
	if err := SetLogger(nil); err != nil {
		t.Fatal(err)
	}
	if err := SetLogger(slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
}
