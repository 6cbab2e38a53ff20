//! The conversions that HIP sources do in software, run on the host and compared with the reference, value by value.
//! `PEERWARP_CLANG` names the compiler; without it the test says that it is skipped.

use std::path::Path;
use std::process::Command;

use half::bf16;
use peerwarp_codegen::fp8;

const BITS: &str = include_str!("../../templates/hip/prim/bits.hbs");
const TYPES: &str = include_str!("../../templates/prim/types.hbs");
const FP8: &str = include_str!("../../templates/hip/prim/fp8.hbs");
const BF16: &str = include_str!("../../templates/hip/prim/bf16.hbs");

/// Reads f32 bits, writes for each the fp8 byte and the bf16 word; then the f32 bits of all 256 fp8 values.
const MAIN: &str = r#"
#include <stdio.h>
int main() {
    u32 bits;
    while (fread(&bits, 4, 1, stdin) == 1) {
        const fp8 byte = to_fp8(bits_as<f32>(bits));
        const bf16 word = to_bf16(bits_as<f32>(bits));
        fwrite(&byte, 1, 1, stdout);
        fwrite(&word, 2, 1, stdout);
    }
    for (u32 i = 0; i < 256; ++i) {
        const u32 out = bits_as<u32>(to_f32(fp8{static_cast<unsigned char>(i)}));
        fwrite(&out, 4, 1, stdout);
    }
}
"#;

/// Every exponent with mantissas around each rounding boundary of both formats, of both signs.
fn inputs() -> Vec<u32> {
    let mut all = vec![];
    for exponent in 0..=255u32 {
        for high in 0..32u32 {
            for low in [0u32, 1, 0x1ffff, 0x20000, 0x20001, 0x3ffff] {
                let mantissa = ((high << 18) | low) & 0x7f_ffff;
                all.extend([0, 1].map(|sign: u32| (sign << 31) | (exponent << 23) | mantissa));
            }
        }
        for low in [0x7fffu32, 0x8000, 0x8001, 0x1_7fff, 0x1_8000, 0x1_8001] {
            all.push((exponent << 23) | low);
        }
    }
    all
}

#[test]
fn software_conversions_agree_with_the_reference() {
    let Some(clang) = std::env::var("PEERWARP_CLANG").ok().filter(|c| !c.is_empty()) else {
        println!("skipped: PEERWARP_CLANG names no compiler");
        return;
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hip_conversions");
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program, input) = (dir.join("main.cc"), dir.join("main"), dir.join("input"));
    std::fs::write(&source, [TYPES, BITS, FP8, BF16, MAIN].concat()).unwrap();
    let status = Command::new(clang)
        .args(["-std=c++17", "-O2", "-D__device__=", "-D__forceinline__=inline", "-o"])
        .args([&program, &source])
        .status()
        .expect("the compiler starts");
    assert!(status.success());
    let inputs = inputs();
    std::fs::write(&input, inputs.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let out = Command::new(&program).stdin(std::fs::File::open(&input).unwrap()).output().unwrap().stdout;
    assert_eq!(out.len(), inputs.len() * 3 + 1024);
    let (encoded, decoded) = out.split_at(inputs.len() * 3);
    for (bits, got) in inputs.iter().zip(encoded.chunks(3)) {
        let x = f32::from_bits(*bits);
        let word = u16::from_le_bytes([got[1], got[2]]);
        if x.is_nan() {
            assert!(got[0] & 0x7f == 0x7f && bf16::from_bits(word).is_nan(), "{bits:#010x}");
            continue;
        }
        assert_eq!(got[0], fp8::from_f32(x), "{x:e} ({bits:#010x}) as fp8");
        assert_eq!(word, bf16::from_f32(x).to_bits(), "{x:e} ({bits:#010x}) as bf16");
    }
    for (byte, got) in (0..=255u8).zip(decoded.chunks(4)) {
        let (got, want) = (f32::from_le_bytes(got.try_into().unwrap()), fp8::to_f32(byte));
        assert!(
            got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            "{byte:#04x}: {got} {want}"
        );
    }
}
