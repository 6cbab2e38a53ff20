//! Several emitted sources in one translation unit: a compiler reads its own headers once for all of them.

use std::path::{Path, PathBuf};

use peerwarp_codegen::print::Source;

/// A source in a file.
pub struct Written {
    pub path: PathBuf,
    /// No unit has two kernels of one name.
    entry: String,
}

impl Written {
    /// Writes a source to a file of this name with the source's ending, and its header beside it.
    pub fn new(folder: &Path, name: &str, source: &Source) -> Written {
        std::fs::create_dir_all(folder).expect("the target folder is writable");
        let ending = Path::new(&source.file_name).extension().expect("sources have an ending");
        let path = folder.join(name).with_extension(ending);
        std::fs::write(&path, &source.text).expect("the target folder is writable");
        std::fs::write(folder.join(&source.abi_file_name), &source.abi)
            .expect("the target folder is writable");
        Written { path, entry: source.entry.clone() }
    }
}

/// Units that include all sources: two, or more where kernels have the same name.
pub fn together(folder: &Path, name: &str, sources: &[Written]) -> Vec<PathBuf> {
    let mut units: Vec<Vec<&Written>> = vec![vec![], vec![]];
    for source in sources {
        let free = units.iter_mut().filter(|unit| unit.iter().all(|other| other.entry != source.entry));
        match free.min_by_key(|unit| unit.len()) {
            Some(unit) => unit.push(source),
            None => units.push(vec![source]),
        }
    }
    let write = |(number, unit): (usize, &Vec<&Written>)| {
        let include = |source: &&Written| format!("#include \"{}\"\n", source.path.display());
        let path = folder.join(format!("unit_{number}_of_{name}"));
        let path = path.with_extension(sources[0].path.extension().expect("sources have an ending"));
        std::fs::write(&path, unit.iter().map(include).collect::<String>())
            .expect("the target folder is writable");
        path
    };
    units.iter().enumerate().map(write).collect()
}
