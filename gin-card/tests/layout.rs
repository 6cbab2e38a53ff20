//! The interface in Rust has C's layout: compared with a hand-written account of it, and with NCCL's headers where they are.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use peerwarp_gin_card::abi::{
    self, Config, Ends, Properties, Puts, Puts14, RmaProperties, Setup, Table14, Table15, Table16,
};

/// Folders of headers, as in PATH: `include` of CUDA, `include` of NCCL's wheel or package, and `src/include` and
/// `src/include/plugin` of NCCL's sources, which alone have the tables. Without them the comparison is skipped.
const HEADERS: &str = "PEERWARP_NCCL_INCLUDE";

/// C's name of a type, its size, and C's names of fields with their offsets.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

fn layouts() -> Vec<Layout> {
    macro_rules! layout {
        ($c:literal, $rust:ty, $($field:literal = $($path:tt).+),+ $(,)?) => {
            ($c, size_of::<$rust>(), vec![$(($field, offset_of!($rust, $($path).+))),+])
        };
    }
    macro_rules! table {
        ($c:literal, $rust:ty $(, $field:literal = $path:tt)*) => {
            layout!($c, $rust $(, $field = $path)*,
                "name" = name, "init" = init, "devices" = devices, "getProperties" = properties,
                "listen" = setup.listen, "connect" = setup.connect, "createContext" = setup.create_context,
                "regMrSym" = setup.register, "regMrSymDmaBuf" = setup.register_dma_buf,
                "deregMrSym" = setup.deregister, "destroyContext" = setup.destroy_context,
                "closeColl" = setup.close_collective, "closeListen" = setup.close_listener,
                "iput" = puts.put, "iputSignal" = puts.put_signal, "iget" = puts.get,
                "iflush" = ends.flush, "test" = ends.test, "rmaProgress" = ends.progress,
                "queryLastError" = ends.last_error, "finalize" = ends.finalize)
        };
    }
    vec![
        layout!(
            "ncclNetProperties_v12_t",
            Properties,
            "name" = name,
            "pciPath" = pci_path,
            "guid" = guid,
            "ptrSupport" = ptr_support,
            "regIsGlobal" = reg_is_global,
            "forceFlush" = force_flush,
            "speed" = speed,
            "port" = port,
            "latency" = latency,
            "maxComms" = max_comms,
            "maxRecvs" = max_recvs,
            "netDeviceType" = net_device_type,
            "netDeviceVersion" = net_device_version,
            "vProps" = v_props,
            "maxP2pBytes" = max_p2p_bytes,
            "maxCollBytes" = max_coll_bytes,
            "maxMultiRequestSize" = max_multi_request_size,
            "railId" = rail_id,
            "planeId" = plane_id,
        ),
        layout!(
            "ncclRmaConfig_v16_t",
            Config,
            "nContexts" = contexts,
            "trafficClass" = traffic_class,
            "rankStride" = rank_stride
        ),
        layout!(
            "ncclRmaProperties_v16_t",
            RmaProperties,
            "flushesAllPutsOnAnySignal" = flushes_all_puts_on_any_signal
        ),
        table!("ncclRma_v16_t", Table16, "getRmaProperties" = rma_properties),
        table!("ncclRma_v15_t", Table15),
        table!("ncclRma_v14_t", Table14),
    ]
}

fn constants() -> Vec<(&'static str, u64)> {
    vec![
        ("ncclSuccess", abi::SUCCESS as u64),
        ("ncclUnhandledCudaError", abi::UNHANDLED_CUDA_ERROR as u64),
        ("ncclSystemError", abi::SYSTEM_ERROR as u64),
        ("ncclInternalError", abi::INTERNAL_ERROR as u64),
        ("ncclInvalidArgument", abi::INVALID_ARGUMENT as u64),
        ("ncclInvalidUsage", abi::INVALID_USAGE as u64),
        ("ncclRemoteError", abi::REMOTE_ERROR as u64),
        ("NCCL_NET_DEVICE_GIN_PROXY", abi::GIN_PROXY as u64),
    ]
}

/// Constants that the headers of the sources alone have.
fn constants_of_plugins() -> Vec<(&'static str, u64)> {
    vec![
        ("NCCL_PTR_HOST", abi::HOST_MEMORY as u64),
        ("NCCL_PTR_CUDA", abi::GPU_MEMORY as u64),
        ("NCCL_NET_MR_FLAG_FORCE_SO", abi::FORCE_STRONG_ORDER),
        ("NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET", abi::SIGNAL_NEVER_RESET),
        ("NCCL_NET_SIGNAL_OP_INC", abi::SIGNAL_INCREMENT.into()),
        ("NCCL_NET_SIGNAL_OP_ADD", abi::SIGNAL_ADD.into()),
        ("NCCL_NET_HANDLE_MAXSIZE", abi::HANDLE_BYTES as u64),
        ("NCCL_LOG_WARN", abi::LOG_WARN as u64),
        ("NCCL_NET", abi::LOG_NET),
    ]
}

#[test]
fn tables_are_a_name_and_pointers_in_order() {
    let pointer = size_of::<usize>();
    let sizes = [size_of::<Setup>(), size_of::<Puts>(), size_of::<Puts14>(), size_of::<Ends>()];
    assert_eq!(sizes.map(|size| size / pointer), [9, 3, 3, 5]);
    let tables = [size_of::<Table16>(), size_of::<Table15>(), size_of::<Table14>()];
    assert_eq!(tables.map(|size| size / pointer), [22, 21, 21]);
    // On 64 bits: two pointers, a number, ten integers and a float, a device of nine, two sizes, and 4 + 2 + 2 bytes.
    assert_eq!((size_of::<Properties>(), offset_of!(Properties, max_p2p_bytes)), (128, 104));
    assert_eq!((size_of::<Config>(), size_of::<RmaProperties>()), (12, 1));
}

#[test]
fn the_interface_fits_the_headers() {
    let Some(folders) = std::env::var_os(HEADERS).filter(|folders| !folders.is_empty()) else {
        return println!("skipped: {HEADERS} is not set");
    };
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let has = |file: &str| folders.iter().any(|folder| folder.join(file).exists());
    assert!(has("nccl.h"), "none of the folders in {HEADERS} has nccl.h");
    let has_tables = has("rma/rma_v16.h");
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <nccl.h>\n#include <nccl_device/net_device.h>\n",
    );
    if has_tables {
        program.push_str("#include <nccl_net.h>\n#include <rma/rma_v16.h>\n");
    }
    program.push_str("int main(void) {\n");
    let mut ours = vec![];
    let mut constants = constants();
    if has_tables {
        constants.extend(constants_of_plugins());
        for (name, size, fields) in layouts() {
            ours.push((name.to_owned(), size as u64));
            writeln!(program, "printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
            for (field, offset) in fields {
                ours.push((format!("{name}.{field}"), offset as u64));
                writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));").unwrap();
            }
        }
    }
    for (name, value) in constants {
        ours.push((name.to_owned(), value));
        writeln!(program, "printf(\"{name} %llu\\n\", (unsigned long long)({name}));").unwrap();
    }
    program.push_str("return 0; }\n");
    let ours: Vec<String> = ours.into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    assert_eq!(printed(&program, &folders).lines().collect::<Vec<_>>(), ours);
    println!("compared {} numbers, tables among them: {has_tables}", ours.len());
}

/// What a C++ program prints that is compiled with these folders of headers.
fn printed(program: &str, folders: &[PathBuf]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gin-card-layout");
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.cc"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    for folder in folders {
        compiler.arg("-I").arg(folder);
    }
    let compiled = compiler
        .args(["-w", "-x", "c++"])
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("a C++ compiler is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()
}
