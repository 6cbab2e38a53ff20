//! Programs that get a time to end in, and room for what they say.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use peerwarp_codegen::threads::{self, ThreadsRefused};
use rustix::process::{Pid, Signal, kill_process_group};

/// The most that is read of what a program says, on each of its two streams. The rest is discarded.
const MOST: u64 = 16 << 20;

/// What a program says, without input.
///
/// # Errors
/// It cannot be started, the system refuses threads that read what it says, or it has not ended after `limit`:
/// [`io::ErrorKind::TimedOut`], and it and what it has started are killed.
pub(crate) fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    // A group of its own: a program that is a script is killed with what it waits for.
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => ThreadsRefused::from(&e).into(),
        _ => e,
    })?;
    let group = Pid::from_child(&child);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let child = Arc::new(Mutex::new(child));
    let (done, ended) = mpsc::channel();
    let started = threads::spawn(move || read(err)).and_then(|err| {
        let child = Arc::clone(&child);
        threads::spawn(move || {
            let stdout = read(out);
            let stderr = err.join().unwrap_or_default();
            // The receiver is gone if the time is over.
            let _ = done.send(wait(&child).map(|status| Output { status, stdout, stderr }));
        })
    });
    if let Err(refused) = started {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = wait(&child);
        return Err(refused.into());
    }
    ended.recv_timeout(limit).unwrap_or_else(|_| {
        let _ = kill_process_group(group, Signal::KILL);
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("it has not ended in {} s", limit.as_secs_f64())))
    })
}

fn wait(child: &Mutex<Child>) -> io::Result<ExitStatus> {
    child.lock().unwrap_or_else(PoisonError::into_inner).wait()
}

fn read(stream: Option<impl Read>) -> Vec<u8> {
    let mut all = vec![];
    if let Some(stream) = stream {
        // What was read before an error is what there is.
        let _ = stream.take(MOST).read_to_end(&mut all);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    fn sh(script: &str, limit: f64) -> io::Result<Output> {
        output(Command::new("sh").args(["-c", script]), Duration::from_secs_f64(limit))
    }

    #[test]
    fn what_ends_in_time_is_reported() {
        let out = sh("echo a; echo b >&2; read x || exit 3", 20.0).unwrap();
        assert_eq!(
            (out.stdout.as_slice(), out.stderr.as_slice(), out.status.code()),
            (&b"a\n"[..], &b"b\n"[..], Some(3))
        );
        assert_eq!(
            output(&mut Command::new("/no/such"), Duration::MAX).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn what_hangs_is_killed_with_what_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let (mark, started) = (dir.path().join("mark"), Instant::now());
        // The inner one would say that it lives on.
        let script = format!("(sleep 1; echo > '{}') & sleep 1000", mark.display());
        assert_eq!(sh(&script, 0.2).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(1500));
        assert!(!mark.exists());
    }

    #[test]
    fn what_never_stops_talking_is_heard_up_to_a_limit() {
        let out = sh("yes", 60.0).unwrap();
        assert_eq!((out.stdout.len() as u64, out.status.success()), (MOST, false));
    }
}
