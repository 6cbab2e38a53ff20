//! What the ranks of a world know, and no other process on the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rand::TryRngCore;
use rand::rngs::OsRng;
use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::runtime::RuntimeError;

/// Holds the world's secret; the same on all ranks.
pub const SECRET_VARIABLE: &str = "PEERWARP_SECRET";

/// Names a file with the world's secret, which only its owner, the user of the ranks, may read.
pub const SECRET_FILE_VARIABLE: &str = "PEERWARP_SECRET_FILE";

/// Bytes of a secret.
const LENGTH: std::ops::RangeInclusive<usize> = 32..=4096;

/// The secret of a world: who knows it is one of its ranks. It never goes over a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new one. A program that starts ranks itself draws it once, and passes it on where no other user can listen.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn draw() -> Result<Secret, RuntimeError> {
        let bytes =
            random().map_err(|e| RuntimeError::invalid("random numbers of the system", e, "needed"))?;
        Ok(Secret(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// One that was passed on: 32 to 4096 bytes that cannot be guessed.
    ///
    /// # Errors
    /// Its length. The error does not have the secret in it.
    pub fn new(text: &str) -> Result<Secret, RuntimeError> {
        Secret::named("a world's secret", text)
    }

    /// The text, to be passed on where no other user can listen.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The one that an environment has or names.
    pub(super) fn of(environment: &BTreeMap<String, String>, launcher: &str) -> Result<Secret, RuntimeError> {
        match (environment.get(SECRET_VARIABLE), environment.get(SECRET_FILE_VARIABLE)) {
            (Some(text), None) => Secret::named(SECRET_VARIABLE, text.trim()),
            (None, Some(path)) => Secret::read(Path::new(path)),
            (Some(_), Some(path)) => {
                let allowed = format!("one of the two: {SECRET_VARIABLE} is set as well");
                Err(RuntimeError::invalid(SECRET_FILE_VARIABLE, path, allowed))
            }
            (None, None) => {
                let allowed = format!(
                    "a secret of 32 bytes or more, the same for all ranks and for no other world (`export \
                     {SECRET_VARIABLE}=$(openssl rand -hex 32)` before {launcher}), or {SECRET_FILE_VARIABLE} with \
                     the path of a file that has it; the number of a job is no secret"
                );
                Err(RuntimeError::invalid(format!("{SECRET_VARIABLE} under {launcher}"), "", allowed))
            }
        }
    }

    fn named(name: &str, text: &str) -> Result<Secret, RuntimeError> {
        if LENGTH.contains(&text.len()) {
            return Ok(Secret(text.to_owned()));
        }
        let allowed = format!("{} to {} bytes that cannot be guessed", LENGTH.start(), LENGTH.end());
        Err(RuntimeError::invalid(name, format!("({} bytes)", text.len()), allowed))
    }

    fn read(path: &Path) -> Result<Secret, RuntimeError> {
        let io = |e: io::Error| RuntimeError::Io { path: path.into(), reason: e.to_string() };
        let bad = |what: &str, value: String, allowed: String| {
            let field = format!("{what} of {}, which {SECRET_FILE_VARIABLE} names,", path.display());
            RuntimeError::invalid(field, value, allowed)
        };
        // A pipe without a writer is not waited for.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        let own = geteuid().as_raw();
        if !about.is_file() {
            return Err(bad("kind", "special".into(), "a regular file".into()));
        }
        if about.uid() != own {
            let allowed = format!("user {own}, who runs this process");
            return Err(bad("owner", format!("user {}", about.uid()), allowed));
        }
        if about.mode() & 0o077 != 0 {
            let mode = format!("{:03o}", about.mode() & 0o777);
            return Err(bad("mode", mode, "600 or 400: no other user may read it".into()));
        }
        Secret::named(SECRET_FILE_VARIABLE, text(file).map_err(io)?.trim())
    }
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    // One more than is allowed, and a line's end.
    file.take(*LENGTH.end() as u64 + 3).read_to_string(&mut text)?;
    Ok(text)
}

/// Bytes that were never seen before.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn of(path: &Path) -> Result<Secret, RuntimeError> {
        let path = path.to_str().unwrap().to_owned();
        Secret::of(&BTreeMap::from([(SECRET_FILE_VARIABLE.to_owned(), path)]), "srun")
    }

    #[test]
    fn a_file_that_others_can_read_has_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = Secret::draw().unwrap();
        write(&path, format!("{}\n", secret.expose())).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o610] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let said = of(&path).unwrap_err().to_string();
            assert!(
                said.ends_with(&format!("names, = {mode:o}: 600 or 400: no other user may read it")),
                "{said}"
            );
            assert!(!said.contains(secret.expose()));
        }
        for mode in [0o600, 0o400] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(of(&path).unwrap(), secret);
        }
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(of(&link).unwrap(), secret);
    }

    #[test]
    fn what_is_no_file_of_this_user_has_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| of(path).unwrap_err().to_string();
        assert!(said(&folder.path().join("none")).contains("No such file"));
        assert!(said(folder.path()).contains("a regular file"));
        // No process writes to it, and none waits for that.
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(said(&pipe).contains("a regular file"));
        // Another user's file: where the tests run as root, user 65534's.
        let other = folder.path().join("other");
        write(&other, [b'x'; 32]).unwrap();
        set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        let foreign = match geteuid().is_root() {
            true => std::os::unix::fs::chown(&other, Some(65534), None).map(|()| other).unwrap(),
            false => "/etc/passwd".into(),
        };
        assert!(said(&foreign).contains("which PEERWARP_SECRET_FILE names, = user"), "{}", said(&foreign));
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        let bad = |text: &str| Secret::new(text).unwrap_err().to_string();
        assert!(bad(&"s".repeat(31)).contains("(31 bytes): 32 to 4096"));
        assert!(bad(&"s".repeat(4097)).contains("(4097 bytes)"));
        let (one, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!((format!("{one:?}"), one.expose().len()), ("Secret(..)".to_owned(), 64));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        write(&path, [b'x'; 5000]).unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(of(&path).unwrap_err().to_string().contains("32 to 4096 bytes"));
    }
}
