//! Runs the command, and makes what it prints the same on every machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A folder to run in.
pub struct Place {
    pub dir: TempDir,
}

/// What a command did.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A shell script that can be run. Returns its path.
    pub fn program(&self, name: &str, text: &str) -> String {
        let path = self.write(name, "").display().to_string();
        // Written by another process: were it open here while another test forks, exec would find it busy.
        let write = ["-c", "cat > \"$0\" && chmod +x \"$0\"", &path];
        let mut child = Command::new("sh").args(write).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        path
    }

    /// Runs `peerwarp` in this folder.
    pub fn run<S: AsRef<str>>(&self, args: &[S]) -> Ran {
        self.run_with(args, &[])
    }

    /// Runs `peerwarp` in this folder with more in the environment.
    pub fn run_with<S: AsRef<str>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
            .args(args.iter().map(AsRef::as_ref))
            .current_dir(self.dir.path())
            .env_remove("NO_COLOR")
            .env("COLUMNS", "100")
            .envs(env.iter().copied())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Runs `peerwarp` with arguments separated by spaces.
    pub fn say(&self, args: &str) -> Ran {
        self.run(&args.split_whitespace().collect::<Vec<_>>())
    }

    /// Names of everything in the folder.
    pub fn names(&self) -> Vec<String> {
        names(self.dir.path())
    }
}

/// Names of everything in a folder.
pub fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

impl Ran {
    /// Exit status and both streams, for a snapshot.
    pub fn report(&self) -> String {
        let mut all = format!("exit {}\n", self.code);
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                all.push_str(&format!("--- {name}\n{text}"));
            }
        }
        all
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.report()))
    }
}
