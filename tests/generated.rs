//! `generated/` is what the sources emit. After a change to a kernel or a printer, write it anew with the command below
//! without `--check`, and read the difference.

use std::process::Command;

#[test]
fn is_as_emitted() {
    let command =
        "generate --model deepseek-v3 --tokens 128 --ranks 8 --target cuda:sm_90a,hip:gfx942 --out generated";
    let ran = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
        .args(command.split(' '))
        .arg("--check")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("the command runs");
    let said = [ran.stdout, ran.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
    assert!(ran.status.success(), "{said}\nwrite it anew: peerwarp {command}");
}
