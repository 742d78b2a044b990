//! A future that rarely has something to say, beside others in the same task that often have.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Polls a future only when that has been woken, not each time that its task runs. Waiting for something that all streams
/// share would otherwise cost each stream a turn at a lock for each of its own events.
///
/// For tasks that are spawned by themselves: their waker stays the same.
#[derive(Debug)]
pub(super) struct Rarely<F> {
    future: F,
    woken: Arc<Woken>,
    waker: Waker,
}

#[derive(Debug)]
struct Woken {
    set: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set.store(true, Ordering::SeqCst);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Rarely<F> {
    pub(super) fn new(future: F) -> Self {
        let woken = Arc::new(Woken {
            set: AtomicBool::new(true),
            task: Mutex::new(None),
        });
        Self {
            future,
            waker: woken.clone().into(),
            woken,
        }
    }

    /// The future, to be changed. It is polled next time.
    pub(super) fn change(&mut self) -> &mut F {
        self.woken.set.store(true, Ordering::SeqCst);
        &mut self.future
    }
}

impl<F: Future + Unpin> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if !self.woken.set.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        // Before the future is polled: whatever wakes it from now on finds the task.
        *self.woken.task.lock() = Some(context.waker().clone());
        self.woken.set.store(false, Ordering::SeqCst);
        let this = &mut *self;
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tokio::sync::{mpsc, watch};
    use tokio::time::{Instant, Sleep, sleep_until};

    use super::*;

    #[tokio::test]
    async fn it_ends_when_the_future_does_whatever_else_its_task_does() {
        let (often, mut events) = mpsc::channel(1);
        let sender = watch::Sender::new(false);
        let mut rare = sender.subscribe();
        let task = tokio::spawn(async move {
            let changed = pin!(rare.changed());
            let mut rare = Rarely::new(changed);
            let mut seen = 0;
            loop {
                tokio::select! {
                    biased;
                    changed = &mut rare => return (seen, changed.is_ok()),
                    Some(()) = events.recv() => seen += 1,
                }
            }
        });
        for _ in 0..100 {
            often.send(()).await.unwrap();
        }
        // All have been taken when there is room again.
        drop(often.reserve().await.unwrap());
        sender.send_replace(true);
        let (seen, changed) = task.await.unwrap();
        assert!(changed && seen >= 99, "{seen}");
    }

    #[tokio::test]
    async fn one_that_is_changed_is_polled_again() {
        let task = tokio::spawn(async {
            let far = Instant::now() + Duration::from_secs(600);
            let mut alarm = Rarely::new(Box::pin(sleep_until(far)));
            tokio::select! {
                biased;
                () = &mut alarm => return false,
                () = std::future::ready(()) => {}
            }
            let sleep: &mut Pin<Box<Sleep>> = alarm.change();
            sleep.as_mut().reset(Instant::now());
            alarm.await;
            true
        });
        assert!(task.await.unwrap());
    }
}
