//! Requests that never stop: their failures are what a change has disturbed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::support::{DEADLINE, wait_until};

/// Asks, on a thread, again and again, until it is stopped.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: Option<JoinHandle<BTreeMap<String, usize>>>,
}

impl Traffic {
    /// Starts asking; returns when the first question has been answered.
    pub fn start(mut ask: impl FnMut() -> io::Result<String> + Send + 'static) -> Self {
        let (stop, asked) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stop2, asked2) = (stop.clone(), asked.clone());
        let thread = std::thread::spawn(move || {
            let mut answers = BTreeMap::new();
            while !stop2.load(Ordering::SeqCst) {
                let answer = ask().unwrap_or_else(|error| format!("error: {error}"));
                *answers.entry(answer).or_default() += 1;
                asked2.fetch_add(1, Ordering::SeqCst);
            }
            answers
        });
        let traffic = Self {
            stop,
            asked,
            thread: Some(thread),
        };
        traffic.more(1);
        traffic
    }

    /// Waits until as many more questions have been asked and answered, each of them begun after this call.
    pub fn more(&self, count: usize) {
        // One may have been on its way when this was called.
        let enough = self.asked.load(Ordering::SeqCst) + count + 1;
        wait_until("more requests", DEADLINE, || {
            let asked = self.asked.load(Ordering::SeqCst);
            if asked >= enough {
                Ok(())
            } else {
                Err(format!("{asked} of {enough}"))
            }
        });
    }

    /// Stops asking: how often each answer was given. Failures are answers that begin with `error: `.
    pub fn stop(mut self) -> BTreeMap<String, usize> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }

    /// Stops asking. There must have been one answer only.
    pub fn assert_always(self, answer: &str) {
        let answers = self.stop();
        assert!(
            answers.len() == 1 && answers.contains_key(answer),
            "not always {answer}: {answers:?}"
        );
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Waits until a question is answered so, and then makes sure that this is so every time.
pub fn from_now_on(answer: &str, mut ask: impl FnMut() -> io::Result<String>) {
    // Where several instances answer in turn, each gives one of two answers.
    wait_until(&format!("the answer {answer} twice"), DEADLINE, || {
        for _ in 0..2 {
            match ask() {
                Ok(given) if given == answer => {}
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    });
    for _ in 0..5 {
        assert_eq!(ask().unwrap(), answer);
    }
}

/// Waits until a question fails, and then makes sure that it does every time.
pub fn refused_from_now_on(mut ask: impl FnMut() -> io::Result<String>) {
    // Of two instances that answer in turn, one may refuse before the other has heard.
    wait_until("refused twice", DEADLINE, || {
        (0..2).try_for_each(|_| match ask() {
            Err(_) => Ok(()),
            Ok(given) => Err(given),
        })
    });
    for _ in 0..5 {
        ask().unwrap_err();
    }
}

/// Waits until repeated questions are answered by these, and by nobody else.
pub fn answered_by(names: &[&str], mut ask: impl FnMut() -> io::Result<String>) {
    wait_until(&format!("answered by {names:?}"), DEADLINE, || {
        let counts = crate::support::apps::count_names(4 * names.len(), &mut ask);
        if counts.keys().eq(names) {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    });
}
