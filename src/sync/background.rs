//! A thread that runs until it is told to stop.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// A named thread with a signal that ends it. Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub struct Background {
    stop: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts a thread that runs `work`. The channel that `work` is given becomes ready (disconnected) when it is to end.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn spawn(
        name: &str,
        work: impl FnOnce(&Receiver<()>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = bounded(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&stopped))?;
        Ok(Self {
            stop: Mutex::new(Some(stop)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Tells the thread to end and waits for it, unless it is the thread itself that asks. Doing it twice is fine.
    pub fn stop(&self) {
        self.stop.lock().take();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!("the thread {name} had panicked");
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn stopping_waits_for_the_end_and_may_be_done_twice() {
        let ended = Arc::new(AtomicBool::new(false));
        let of_thread = ended.clone();
        let thread = Background::spawn("background-test", move |stopped| {
            assert!(stopped.recv().is_err(), "nothing is ever sent");
            of_thread.store(true, Ordering::SeqCst);
        })
        .unwrap();
        thread.stop();
        assert!(ended.load(Ordering::SeqCst));
        thread.stop();
    }

    #[test]
    fn a_thread_may_stop_itself() {
        let (give, take) = bounded::<Arc<Background>>(1);
        let (done, finished) = bounded(1);
        let thread = Arc::new(
            Background::spawn("background-test", move |_| {
                let own = take.recv().unwrap();
                own.stop();
                done.send(()).unwrap();
            })
            .unwrap(),
        );
        give.send(thread.clone()).unwrap();
        finished
            .recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
    }
}
