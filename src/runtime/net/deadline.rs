//! Waits that end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::Timespec;

/// The shortest time that a socket can be told to wait: none means for ever.
const MOMENT: Duration = Duration::from_millis(1);

/// More than anybody waits for, and little enough to be added to a point in time.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// A point in time up to which is waited.
#[derive(Debug)]
pub(in crate::runtime) struct Deadline {
    timeout: Duration,
    end: Instant,
}

impl Deadline {
    /// In so much time.
    pub fn after(timeout: Duration) -> Deadline {
        let timeout = timeout.min(LONGEST);
        Deadline { timeout, end: Instant::now() + timeout }
    }

    /// The same, somewhat later.
    pub fn later(&self, by: Duration) -> Deadline {
        Deadline { timeout: self.timeout, end: self.end + by }
    }

    /// In so much time, and no later than this.
    pub fn within(&self, limit: Duration) -> Deadline {
        Deadline { timeout: limit.min(self.timeout), end: self.end.min(Instant::now() + limit) }
    }

    /// Time that is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// How long is waited in all.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// A connection whose waits can be bounded.
pub(super) trait Socket: Read + Write + AsFd + fmt::Debug {
    /// Whether calls wait.
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    /// How long a call that reads may wait.
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// How long a call that writes may wait.
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
}

macro_rules! sockets {
    ($($stream:ty),*) => {$(
        impl Socket for $stream {
            fn set_nonblocking(&self, on: bool) -> io::Result<()> {
                self.set_nonblocking(on)
            }
            fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(timeout)
            }
            fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.set_write_timeout(timeout)
            }
        }
    )*};
}
sockets!(TcpStream, UnixStream);

/// Why bytes did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The time is up.
    Late,
    /// The other side is gone.
    Gone,
}

/// Sets how long the next call that reads waits.
pub(super) fn await_read(stream: &impl Socket, deadline: &Deadline) -> Result<(), Cut> {
    match deadline.left() {
        Duration::ZERO => Err(Cut::Late),
        left => stream.set_read_timeout(Some(left.max(MOMENT))).map_err(|_| Cut::Gone),
    }
}

/// Reads until the bytes are full.
pub(super) fn fill(stream: &mut impl Socket, mut bytes: &mut [u8], deadline: &Deadline) -> Result<(), Cut> {
    while !bytes.is_empty() {
        await_read(stream, deadline)?;
        match stream.read(bytes) {
            Ok(0) => return Err(Cut::Gone),
            Ok(n) => bytes = &mut bytes[n..],
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                _ => return Err(Cut::Gone),
            },
        }
    }
    Ok(())
}

/// For a call that waits.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long_to_wait() {
        let deadline = Deadline::after(Duration::MAX).later(Duration::from_secs(5));
        assert!(deadline.left() > Duration::from_secs(1 << 29));
        assert!(deadline.within(Duration::from_secs(1)).left() <= Duration::from_secs(1));
    }
}
