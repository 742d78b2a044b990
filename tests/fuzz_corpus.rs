//! The fuzz targets, briefly: every file of their corpora, then seeded mutations of these. A failing input is written to
//! `target/tmp/fuzz-failures/`; `PROXYCFG_FUZZ_INPUT=FILE` runs it alone. `PROXYCFG_FUZZ_SECONDS` makes the second part longer,
//! `PROXYCFG_FUZZ_SEED` makes it another one. `.ci/fuzz` is the long run, led by coverage.
#![cfg(feature = "server")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

/// Mutations of a target that always run; a transaction costs the most, since the whole store is looked at after it.
fn mutations(name: &str) -> usize {
    if name == "transactions" { 200 } else { 1_500 }
}

/// Bytes that an input grows to.
const LONGEST: usize = 4_096;

#[test]
fn filters() {
    run("filters");
}

#[test]
fn hcl() {
    run("hcl");
}

#[test]
fn records() {
    run("records");
}

#[test]
fn requests() {
    run("requests");
}

#[test]
fn transactions() {
    run("transactions");
}

#[test]
fn every_target_can_be_run_by_cargo_fuzz() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let script = std::fs::read_to_string(root.join("../.ci/fuzz")).unwrap();
    for (name, _) in bodies::TARGETS {
        let target = std::fs::read_to_string(root.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(
            target.contains(&format!("bodies::{name}::run(data)")),
            "{target}"
        );
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        assert!(script.contains(name), ".ci/fuzz leaves {name} out");
    }
}

fn run(name: &str) {
    let (_, target) = bodies::TARGETS.iter().find(|(n, _)| *n == name).unwrap();
    if let Some(path) = std::env::var_os("PROXYCFG_FUZZ_INPUT") {
        return target(&std::fs::read(path).unwrap());
    }
    let corpus = corpus(name);
    for (path, bytes) in &corpus {
        let shown = path.display().to_string();
        try_input(name, *target, bytes, &shown);
    }
    let number = |key: &str| {
        std::env::var(key)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let seed = number("PROXYCFG_FUZZ_SEED").unwrap_or(1);
    let until = number("PROXYCFG_FUZZ_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let mut pool: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let mut random = Random(seed);
    for round in 0.. {
        if round >= mutations(name) && until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
        let input = random.mutated(&pool, &words(name));
        try_input(
            name,
            *target,
            &input,
            &format!("seed {seed}, round {round}"),
        );
        // Some of them are mutated further.
        if random.below(16) == 0 && pool.len() < 1_000 {
            pool.push(input);
        }
    }
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "the corpus {} is gone", folder.display());
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// The target's words, from the dictionary that cargo-fuzz uses too.
fn words(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/fuzz/words/{name}", env!("CARGO_MANIFEST_DIR"));
    let Ok(text) = std::fs::read_to_string(path) else {
        return Vec::new();
    };
    let lines = text.lines().filter(|line| line.starts_with('"'));
    lines
        .map(|line| {
            line[1..line.len() - 1]
                .replace("\\\"", "\"")
                .replace("\\\\", "\\")
                .into_bytes()
        })
        .collect()
}

fn try_input(name: &str, target: fn(&[u8]), bytes: &[u8], origin: &str) {
    let result: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    let Err(panic) = result else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-failures");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    eprintln!(
        "{name}: fails for {origin}: {:?}\nonce more: PROXYCFG_FUZZ_INPUT={} cargo test --test fuzz_corpus {name}",
        String::from_utf8_lossy(bytes),
        path.display()
    );
    resume_unwind(panic);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..start + self.below((length - start).min(64) + 1)
    }

    fn mutated(&mut self, pool: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
        let mut input = pool[self.below(pool.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            match self.below(8) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => input[at] = self.next() as u8,
                2 => drop(input.drain(self.range(input.len()))),
                3 => {
                    let piece = input[self.range(input.len())].to_vec();
                    input.splice(at..at, piece);
                }
                4 => {
                    let other = &pool[self.below(pool.len())];
                    let piece = other[self.range(other.len())].to_vec();
                    input.splice(at..at, piece);
                }
                5 | 6 if !words.is_empty() => {
                    let word = words[self.below(words.len())].clone();
                    input.splice(at..at, word);
                }
                _ => input.insert(at, self.next() as u8),
            }
        }
        input.truncate(LONGEST);
        input
    }
}
