//! Which fault happens where: a function of the seed, the point, and how often the point was passed.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use proxycfg::sync::fault::{Installed, Point, install};

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const INTENT: &str = "fault point: by intent";

/// In a thousand: errors (or whatever the point makes of true), panics, delays.
fn odds(point: Point) -> (usize, usize, usize) {
    match point {
        Point::View => (60, 40, 0),
        Point::Part => (0, 30, 2),
        Point::Publish => (0, 0, 20),
        Point::Waker | Point::Callback => (0, 150, 30),
        Point::Subscribe => (0, 150, 50),
        Point::Answer => (300, 0, 50),
        Point::Sign => (300, 0, 20),
        Point::Persist => (60, 20, 10),
        Point::LocalSync | Point::CatalogSource => (0, 250, 20),
        _ => (0, 0, 0),
    }
}

/// Has faults happen everywhere until the result is dropped.
pub fn raise(seed: u64) -> Installed {
    be_quiet();
    let passed: Mutex<BTreeMap<Point, u64>> = Mutex::default();
    install(move |point| {
        let n = {
            let mut passed = passed.lock();
            let n = passed.entry(point).or_default();
            *n += 1;
            *n
        };
        let mut random = Random::new(seed ^ (n << 8) ^ point as u64);
        let (fails, panics, waits) = odds(point);
        let drawn = random.below(1_000);
        if drawn < fails {
            return true;
        }
        assert!(drawn >= fails + panics, "{INTENT}");
        if drawn < fails + panics + waits {
            std::thread::sleep(Duration::from_micros(random.below(2_000) as u64));
        }
        false
    })
}

/// Panics by intent aren't written out; others are.
pub fn be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if !matches!(text, INTENT | "by intent") {
                usual(info);
            }
        }));
    });
}
