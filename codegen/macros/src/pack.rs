//! `include_pack!`: checks a pack and puts it into the program.

use std::fs;
use std::path::{Component, Path, PathBuf};

use proc_macro2::TokenStream;
use quote::quote;
use serde_json::Value;
use sha2::{Digest, Sha256};
use syn::LitStr;

/// The version of the manifest that is understood; `peerwarp::build::pack::SCHEMA` in the expansion must be the same.
const SCHEMA: u64 = 2;

const MANIFEST: &str = "pack.json";

/// Expands the macro for a crate whose `Cargo.toml` is in `root`. Errors stand at the literal and name the file.
pub fn expand(input: TokenStream, root: &Path, peerwarp: &TokenStream) -> syn::Result<TokenStream> {
    let literal: LitStr = syn::parse2(input)?;
    let dir = literal.value();
    let pack = read(root, &dir).map_err(|why| syn::Error::new(literal.span(), why))?;
    let Pack { manifest, objects } = pack;
    let objects = objects.iter().map(
        |(file, path)| quote!((#file, ::core::include_bytes!(#path) as &'static [::core::primitive::u8])),
    );
    let schema = SCHEMA as u32;
    Ok(quote! {{
        const _: () = ::core::assert!(
            #peerwarp::build::pack::SCHEMA == #schema,
            "peerwarp and peerwarp-macros are of different versions",
        );
        #peerwarp::build::pack::Embedded::checked(::core::include_str!(#manifest), &[#(#objects),*])
    }})
}

/// A pack that was checked: absolute paths of its files.
struct Pack {
    manifest: String,
    /// With their names in the manifest.
    objects: Vec<(String, String)>,
}

/// Messages call files as the user does: relative to the crate.
fn read(root: &Path, dir: &str) -> Result<Pack, String> {
    let path = |file: &str| root.join(dir).join(file);
    let said = |file: &str| Path::new(dir).join(file).display().to_string();
    let manifest = path(MANIFEST);
    let text = fs::read(&manifest).map_err(|e| {
        let advice =
            "a pack's folder is given relative to that of Cargo.toml, and `peerwarp pack` writes one";
        format!("{}: {e}; {advice}", said(MANIFEST))
    })?;
    let wrong = |why: &str| format!("{}: {why}; write the pack anew with `peerwarp pack`", said(MANIFEST));
    let json: Value = serde_json::from_slice(&text).map_err(|e| wrong(&e.to_string()))?;
    match json["schema"].as_u64() {
        Some(SCHEMA) => {}
        Some(other) => {
            return Err(wrong(&format!("schema = {other}, and this version of Peerwarp reads {SCHEMA}")));
        }
        None => return Err(wrong("it has no number `schema`")),
    }
    let kernels = json["kernels"].as_array().ok_or_else(|| wrong("it has no list `kernels`"))?;
    let mut objects = vec![];
    for kernel in kernels {
        let object = &kernel["object"];
        let (Some(file), Some(sha256)) = (object["file"].as_str(), object["sha256"].as_str()) else {
            return Err(wrong("a kernel has no object with `file` and `sha256`"));
        };
        if !Path::new(file).components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(wrong(&format!("{file} is not in the pack's folder")));
        }
        let bytes = fs::read(path(file)).map_err(|e| format!("{}: {e}", said(file)))?;
        let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        if found != sha256 {
            return Err(format!(
                "{}: {} bytes with SHA-256 {found}, and the manifest says {} bytes with {sha256}; write the pack \
                 anew with `peerwarp pack`",
                said(file),
                bytes.len(),
                object["bytes"],
            ));
        }
        objects.push((file.to_owned(), utf8(path(file))?));
    }
    Ok(Pack { manifest: utf8(manifest)?, objects })
}

fn utf8(path: PathBuf) -> Result<String, String> {
    path.into_os_string().into_string().map_err(|path| format!("{}: the path is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(dir: &str, object: &str, manifest: &str) -> Result<String, String> {
        let root = std::env::temp_dir().join(format!("peerwarp-include-pack-{}-{dir}", std::process::id()));
        fs::create_dir_all(root.join("p/a")).unwrap();
        fs::write(root.join("p/a/k.cubin"), object).unwrap();
        fs::write(root.join("p/pack.json"), manifest).unwrap();
        let result = expand(quote!("p"), &root, &quote!(::peerwarp));
        fs::remove_dir_all(&root).unwrap();
        result
            .map(|tokens| tokens.to_string().replace(&*root.to_string_lossy(), "ROOT"))
            .map_err(|e| e.to_string())
    }

    const SHA_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn manifest() -> String {
        format!(
            r#"{{"schema": 2, "kernels": [{{"object": {{"file": "a/k.cubin", "bytes": 3, "sha256": "{SHA_OF_ABC}"}}}}]}}"#
        )
    }

    #[test]
    fn a_good_pack_becomes_includes() {
        let tokens = expanded("good", "abc", &manifest()).unwrap();
        for part in [
            r#"include_str ! ("ROOT/p/pack.json")"#,
            r#""a/k.cubin" , :: core :: include_bytes ! ("ROOT/p/a/k.cubin")"#,
            ":: peerwarp :: build :: pack :: SCHEMA == 2u32",
        ] {
            assert!(tokens.contains(part), "{part}: {tokens}");
        }
    }

    #[test]
    fn a_bad_pack_is_reported_by_file() {
        let said = expanded("object", "abcd", &manifest()).unwrap_err();
        assert!(said.starts_with("p/a/k.cubin: 4 bytes with SHA-256 88d4266f"), "{said}");
        assert!(
            said.contains(&format!("the manifest says 3 bytes with {SHA_OF_ABC}; write the pack anew")),
            "{said}"
        );
        let said = expanded("outside", "abc", &manifest().replace("a/k", "../k")).unwrap_err();
        assert!(said.starts_with("p/pack.json: ../k.cubin is not in the pack's folder"), "{said}");
        let said = expanded("nothing", "abc", "{}").unwrap_err();
        assert!(said.starts_with("p/pack.json: it has no number `schema`"), "{said}");
        let said = expanded("hash", "abc", &manifest().replace("sha256", "sha1")).unwrap_err();
        assert!(said.contains("a kernel has no object with `file` and `sha256`"), "{said}");
    }
}
