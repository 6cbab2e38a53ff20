//! The bindings compared with the headers that are installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use super::sys::{constants, layouts};

/// A field's name in C.
fn in_c(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

/// What the headers say, by `structure`, `structure.field` and `constant`.
///
/// `PEERWARP_LIBFABRIC_INCLUDE` names the folder of another version's headers.
fn of_headers() -> BTreeMap<String, u64> {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
         #include <rdma/fi_errno.h>\n#include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n\
         #include <rdma/fi_eq.h>\n#include <rdma/fi_rma.h>\n#include <rdma/fi_cm.h>\nint main(void) {\n",
    );
    for (name, _, fields) in layouts() {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for (field, _) in fields.iter().filter(|(field, _)| *field != "reserve") {
            let c = in_c(field);
            writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {c}));").unwrap();
        }
    }
    for (name, _) in constants() {
        writeln!(program, "printf(\"{name} %llu\\n\", (unsigned long long)({name}));").unwrap();
    }
    program.push_str("return 0; }\n");

    let folder = std::env::temp_dir().join(format!("peerwarp-fabric-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    if let Some(include) = std::env::var_os("PEERWARP_LIBFABRIC_INCLUDE") {
        compiler.arg("-I").arg(include);
    }
    let compiled = compiler.arg("-w").arg(&source).arg("-o").arg(&binary).output();
    let compiled = compiled.expect("a C compiler compares the bindings with the headers: install gcc");
    assert!(
        compiled.status.success(),
        "the headers of libfabric compare the bindings (Debian: libfabric-dev):\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let lines = String::from_utf8(printed.stdout).unwrap();
    let parse = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.lines().map(parse).collect()
}

#[test]
fn bindings_fit_the_headers() {
    if std::env::var_os(crate::LIBRARY_VARIABLE).is_none()
        && !std::path::Path::new("/usr/include/rdma/fabric.h").exists()
    {
        return println!("skipped: libfabric's headers are not installed, and PEERWARP_LIBFABRIC is not set");
    }
    let header = of_headers();
    let mut wrong = vec![];
    for (name, size, fields) in layouts() {
        let reserved = fields.iter().find(|(field, _)| *field == "reserve").map(|(_, at)| *at as u64);
        for (field, at) in fields.iter().filter(|(field, _)| *field != "reserve") {
            let key = format!("{name}.{field}");
            if header[&key] != *at as u64 {
                wrong.push(format!("{key}: {at} here, {} in C", header[&key]));
            }
        }
        // Objects and tables of the library may be longer; what is handed to it ends with the reserve.
        let (ours, theirs) = (size as u64, header[name]);
        let fits = match reserved {
            Some(known) => known <= theirs && theirs <= ours,
            None => theirs >= ours,
        };
        if !fits {
            wrong.push(format!("{name}: {ours} bytes here, {theirs} in C"));
        }
    }
    for (name, value) in constants() {
        if header[name] != value {
            wrong.push(format!("{name}: {value} here, {} in C", header[name]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(header.len() > 100, "few were compared: {}", header.len());
}
