//! Something read from files, and read again when they change.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, select};
use parking_lot::RwLock;

use crate::clock::Clock;
use crate::sync::Background;

/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(1);

/// A value made from files. While it lives, a thread looks at the files every second; if they changed and can be read, the
/// value is replaced, else the last good one stays and the reason is logged, once for each content.
pub struct Reloaded<T> {
    // First, so that the thread has ended before anything that it uses.
    _thread: Background,
    current: Arc<RwLock<Arc<T>>>,
}

/// Makes a value of the contents of files, in the order of their paths.
type Load<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send>;

struct Watcher<T> {
    what: &'static str,
    paths: Vec<PathBuf>,
    load: Load<T>,
    contents: Result<Vec<Vec<u8>>, String>,
    current: Arc<RwLock<Arc<T>>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the files, and follows them. `what` names the value in messages.
    ///
    /// # Errors
    /// A file can't be read, or the value can't be made; or there is no thread.
    pub fn start(
        what: &'static str,
        paths: Vec<PathBuf>,
        clock: Arc<dyn Clock>,
        load: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + 'static,
    ) -> Result<Self, String> {
        let contents = read_all(&paths)?;
        let current = Arc::new(RwLock::new(Arc::new(load(&contents)?)));
        let mut watcher = Watcher {
            what,
            paths,
            load: Box::new(load),
            contents: Ok(contents),
            current: current.clone(),
        };
        let thread = Background::spawn("proxycfg-reload", move |stopped| {
            watcher.follow(&*clock, stopped);
        })
        .map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(Self {
            _thread: thread,
            current,
        })
    }

    /// The newest good value.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        self.current.read().clone()
    }
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").finish_non_exhaustive()
    }
}

impl<T> Watcher<T> {
    fn follow(&mut self, clock: &dyn Clock, stopped: &Receiver<()>) {
        loop {
            let alarm = clock.alarm(POLL);
            select! {
                recv(stopped) -> _ => return,
                recv(alarm) -> _ => self.look(),
            }
        }
    }

    fn look(&mut self) {
        let contents = read_all(&self.paths);
        if contents == self.contents {
            return;
        }
        let loaded = contents.as_ref().map_err(Clone::clone);
        match loaded.and_then(|contents| (self.load)(contents)) {
            Ok(value) => {
                *self.current.write() = Arc::new(value);
                tracing::info!("{} changed and is in effect", self.what);
            }
            Err(error) => {
                tracing::error!(
                    "{}: {error}; what was read before stays in effect",
                    self.what
                );
            }
        }
        self.contents = contents;
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::clock::TestClock;

    #[test]
    fn a_change_is_taken_over_and_a_bad_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let clock = Arc::new(TestClock::new());
        let number = |contents: &[Vec<u8>]| {
            let text = String::from_utf8_lossy(&contents[0]).into_owned();
            text.parse::<u32>().map_err(|e| e.to_string())
        };
        let value = Reloaded::start("a number", vec![path.clone()], clock.clone(), number).unwrap();
        assert_eq!(*value.get(), 1);
        let becomes = |wanted: u32| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while *value.get() != wanted {
                assert!(Instant::now() < deadline, "{wanted} is taken over");
                clock.advance(POLL);
                std::thread::yield_now();
            }
        };
        std::fs::write(&path, "2").unwrap();
        becomes(2);
        std::fs::write(&path, "no number").unwrap();
        clock.advance(POLL * 2);
        std::fs::remove_file(&path).unwrap();
        clock.advance(POLL * 2);
        assert_eq!(*value.get(), 2);
        std::fs::write(&path, "3").unwrap();
        becomes(3);
        let missing = folder.path().join("missing");
        let error = Reloaded::start("a number", vec![missing], clock, number).unwrap_err();
        assert!(error.contains("missing"), "{error}");
    }
}
