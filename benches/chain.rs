//! What compiling a discovery chain costs, by the number of its splits, and what a write costs among many chains. Each row
//! asserts that its work was done; how the rows compare shows that the cost stays proportional.
//!
//! `cargo bench --bench chain` runs the full size; `-- --quick` a small one, as the tests do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "support/chains.rs"]
mod chains;

use std::time::{Duration, Instant};

use chains::{defaults, entry, median, resolver, set, splitter};
use proxycfg::model::EntryKind;
use proxycfg::source::{ChainQuery, StoreViews};
use proxycfg::{Answer, Embedded, EmbeddedConfig, Op, Query, Store, Transaction};
use serde_json::json;

fn main() {
    let quick = std::env::args().any(|a| a == "--quick" || a == "--test");
    let (rounds, chains) = if quick { (20, 50) } else { (2_000, 1_000) };
    for splits in [1, 10, 100] {
        let time = median(&chains::flat(splits), splits, rounds);
        row(&format!("compile a chain of {splits} splits"), time, splits);
    }
    nested(10, rounds);
    write_among(chains);
}

fn row(name: &str, figure: Duration, splits: usize) {
    let each = figure / u32::try_from(splits).expect("few splits");
    let figure = format!("{figure:.1?}");
    println!("{name:<58} {figure:>12} {each:>12.1?} a split");
}

/// A splitter that leads to splitters: as many legs in the end as there are ways.
fn nested(width: usize, rounds: usize) {
    let inner = || (0..width).map(|n| format!("inner{n}"));
    let leaves = |n: usize| (0..width).map(move |m| format!("s{}", n * width + m));
    let mut entries = vec![splitter("api", inner(), ""), defaults("api")];
    for (n, name) in inner().enumerate() {
        entries.extend([splitter(&name, leaves(n), "v1"), defaults(&name)]);
        entries.extend(leaves(n).flat_map(|name| [resolver(&name), defaults(&name)]));
    }
    let splits = width * width;
    let time = median(&set(entries), splits, rounds);
    let name = format!("compile a chain of {width} splits to {width} each");
    row(&name, time, splits);
}

/// Writing one splitter, with its check, where there are many others: from the write until its own chain is compiled anew.
fn write_among(chains: usize) {
    const SPLITS: usize = 10;
    let engine = Embedded::start(EmbeddedConfig::default()).expect("an engine");
    let legs = |chain: usize| (0..SPLITS).map(move |n| format!("leg{chain}-{n}"));
    for chain in 0..chains {
        let mut ops: Vec<Op> = Vec::new();
        for leg in legs(chain) {
            ops.extend([put(defaults(&leg)), put(resolver(&leg))]);
        }
        let name = format!("chain{chain}");
        ops.push(put(defaults(&name)));
        ops.push(put(splitter(&name, legs(chain), "v1")));
        engine.store.apply(Transaction::from(ops)).expect("a write");
    }
    let views = StoreViews {
        datacenter: "dc1".into(),
    };
    let mut times = Vec::new();
    for round in 0..20 {
        let chain = (round * 7) % chains;
        let name = format!("chain{chain}");
        let mut json = splitter(&name, legs(chain), "v1");
        json["Meta"] = json!({"round": round.to_string()});
        let op = put(json);
        let begin = Instant::now();
        engine.store.apply(Transaction::of(op)).expect("a write");
        let targets = targets(&views, &engine.store, &name);
        times.push(begin.elapsed());
        assert_eq!(targets, SPLITS);
    }
    times.sort_unstable();
    let name = format!("write and compile one of {chains} chains of {SPLITS} splits");
    row(&name, times[times.len() / 2], SPLITS);
    let listed = engine
        .store
        .snapshot()
        .reader()
        .config_list(EntryKind::ServiceSplitter)
        .len();
    assert_eq!(listed, chains);
    engine.close_soon();
}

fn put(json: serde_json::Value) -> Op {
    Op::SetConfig {
        entry: Box::new(entry(json)),
        cas: None,
    }
}

fn targets(views: &StoreViews, store: &Store, service: &str) -> usize {
    let query = ChainQuery {
        service: service.into(),
        datacenter: "dc1".into(),
        ..ChainQuery::default()
    };
    let snapshot = store.snapshot();
    match views.answer(&Query::Chain(query), &snapshot.reader()) {
        Ok(Answer::Chain(chain)) => chain.targets.len(),
        other => panic!("{other:?}"),
    }
}
