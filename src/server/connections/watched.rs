//! Where bytes are read and written: the times that a connection has.

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;

use super::{Connections, Place, Seat};

/// A client's bytes, as long as it keeps to the limits; then reading and writing fail, which ends the connection.
#[derive(Debug)]
pub(in crate::server) struct Watched<S> {
    stream: S,
    seat: Seat,
    /// When the head of a request began to come, and how many requests there had been by then.
    head: Option<(Instant, u64)>,
    /// Since when the client has been reading nothing.
    stalled: Option<Instant>,
    written: Instant,
    reading: Pin<Box<Sleep>>,
    writing: Option<Pin<Box<Sleep>>>,
}

/// What a connection without anything to read is waiting for.
enum Waits {
    Request(Instant),
    Answer,
}

impl<S> Watched<S> {
    /// Needs a runtime's timer.
    pub fn new(stream: S, seat: Seat) -> Self {
        let now = Instant::now();
        Self {
            stream,
            head: None,
            stalled: None,
            written: now,
            reading: Box::pin(sleep_until(now + seat.0.0.connections.limits.head)),
            writing: None,
            seat,
        }
    }

    /// Where requests are counted.
    pub fn place(&self) -> &Place {
        self.seat.place()
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    fn connections(&self) -> &Connections {
        &self.seat.0.0.connections
    }

    fn note_read(&mut self) {
        if !self.connections().limits.only_heads {
            return;
        }
        let state = self.seat.0.0.state.lock();
        let begun = state.begun;
        if state.requests == 0 && self.head.is_none_or(|(_, of)| of != begun) {
            self.head = Some((Instant::now(), begun));
        }
    }

    /// Until when the next thing has to come.
    fn deadline(&self, context: &Context<'_>) -> io::Result<Waits> {
        let limits = &self.connections().limits;
        let mut state = self.seat.0.0.state.lock();
        if state.displaced {
            return Err(io::Error::other("another connection has got the place"));
        }
        let waker = context.waker();
        if state.waker.as_ref().is_none_or(|of| !of.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        if state.requests > 0 {
            return Ok(Waits::Answer);
        }
        Ok(Waits::Request(match self.head {
            Some((since, begun)) if begun == state.begun => since + limits.head,
            _ if state.begun == 0 => state.since + limits.head,
            _ => state.since.max(self.written) + limits.idle,
        }))
    }

    /// Waits for the end of the time in which something has to come.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let deadline = match self.deadline(context) {
                Ok(Waits::Request(deadline)) => deadline,
                Ok(Waits::Answer) => return Poll::Pending,
                Err(error) => return Poll::Ready(error),
            };
            if Instant::now() >= deadline {
                return Poll::Ready(self.is_overdue("no request came in time"));
            }
            if self.reading.deadline() != deadline {
                self.reading.as_mut().reset(deadline);
            }
            ready!(self.reading.as_mut().poll(context));
        }
    }

    /// Waits for the end of the time in which something has to be read.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let idle = self.connections().limits.idle;
        let deadline = *self.stalled.get_or_insert_with(Instant::now) + idle;
        let timer = self
            .writing
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(self.is_overdue("the client reads nothing"))
    }

    fn is_overdue(&self, why: &'static str) -> io::Error {
        self.connections().overdue.fetch_add(1, Ordering::Relaxed);
        debug!(why, "a connection is closed");
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    /// What became of an attempt to write.
    fn after_write<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll_stall(context).map(Err);
        }
        self.stalled = None;
        self.written = Instant::now();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                this.note_read();
                // Bytes that keep coming don't stop the time of a head that doesn't end.
                match this.poll_silence(context) {
                    Poll::Ready(error) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Ready(Ok(())),
                }
            }
            Poll::Pending => this.poll_silence(context).map(Err),
            ready => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.after_write(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, buffers);
        this.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
