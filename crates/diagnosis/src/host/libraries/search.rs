//! The search for libraries: as the loader does it, and in the folders of installers and of Python.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::files::names_in_folder;
use super::{Library, LibraryKind, cache, elf, kind_of_file};

/// Variables with folders of libraries.
#[derive(Clone, Debug, Default)]
pub struct SearchPaths {
    /// `LD_LIBRARY_PATH`.
    pub loader: Option<String>,
    /// `VIRTUAL_ENV` and `CONDA_PREFIX`.
    pub python: Vec<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl SearchPaths {
    /// Returns the variables of this process.
    pub fn of_environment() -> Self {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            loader: std::env::var("LD_LIBRARY_PATH").ok(),
            python: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect(),
            home: path("HOME"),
        }
    }
}

/// Last folders in the loader's search.
const DEFAULT: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
];
/// Folders of installers. Jobs put them into `LD_LIBRARY_PATH`.
const INSTALLERS: [&str; 8] = [
    "/opt/amazon/efa/lib",
    "/opt/amazon/efa/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/nccl/build/lib",
    "/usr/local/cuda/lib64",
];
/// Places of Python installations.
const PYTHONS: [&str; 5] = ["/usr", "/usr/local", "/opt/conda", "/opt/venv", "/usr/local/nccl"];
/// Largest number of libraries read.
const MOST: usize = 200;

/// A file found, before it is read.
struct Found {
    kind: LibraryKind,
    name: String,
    path: String,
    how: String,
    by_loader: bool,
}

/// Returns the libraries below `root`, in the order of the loader's search. Libraries outside the search come
/// last.
pub(in super::super) fn find_libraries(root: &Path, paths: &SearchPaths) -> Vec<Library> {
    let mut found = Vec::new();
    for folder in
        paths.loader.iter().flat_map(|path| path.split([':', ';'])).filter(|path| path.starts_with('/'))
    {
        search_folder(root, folder, "LD_LIBRARY_PATH", true, &mut found);
    }
    let bytes = fs::read(root.join("etc/ld.so.cache")).unwrap_or_default();
    for (name, path) in cache::parse_entries(&bytes) {
        if let Some((kind, _)) = kind_of_file(&name)
            && path_below(root, &path).exists()
        {
            found.push(Found { kind, name, path, how: "ld.so.cache".to_owned(), by_loader: true });
        }
    }
    for folder in DEFAULT {
        search_folder(root, folder, folder, true, &mut found);
    }
    for folder in INSTALLERS {
        search_folder(root, folder, folder, false, &mut found);
    }
    for folder in python_folders(root, paths) {
        search_folder(root, &folder, "Python", false, &mut found);
    }
    read_libraries(root, found)
}

/// Returns a path of the machine below `root`.
fn path_below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn search_folder(root: &Path, folder: &str, how: &str, by_loader: bool, found: &mut Vec<Found>) {
    for file in names_in_folder(&path_below(root, folder)) {
        if let Some((kind, name)) = kind_of_file(&file) {
            let path = format!("{}/{file}", folder.trim_end_matches('/'));
            // Programs ask for the name without further numbers. The loader ignores other names.
            let by_loader = by_loader && (file == name || kind == LibraryKind::NetPlugin);
            found.push(Found { kind, name, path, how: how.to_owned(), by_loader });
        }
    }
}

/// Returns `nvidia/nccl/lib` in the site-packages of all Pythons.
fn python_folders(root: &Path, paths: &SearchPaths) -> Vec<String> {
    let homes = paths.home.iter().map(|home| home.join(".local"));
    let bases = paths.python.iter().cloned().chain(homes).chain(PYTHONS.iter().map(PathBuf::from));
    let mut folders = Vec::new();
    for base in bases {
        let lib = base.join("lib");
        for python in names_in_folder(&path_below(root, &lib.to_string_lossy())) {
            for packages in ["site-packages", "dist-packages"] {
                if python.starts_with("python") {
                    folders.push(format!("{}/{python}/{packages}/nvidia/nccl/lib", lib.display()));
                }
            }
        }
    }
    folders
}

/// Reads each file once, and marks the loader's choice for each name.
fn read_libraries(root: &Path, found: Vec<Found>) -> Vec<Library> {
    let mut libraries: Vec<Library> = Vec::new();
    for found in found.into_iter().take(MOST * 8) {
        let path = path_below(root, &found.path);
        let Ok(real) = fs::canonicalize(&path) else { continue };
        let file = match real.strip_prefix(fs::canonicalize(root).unwrap_or_default()) {
            Ok(below) => Path::new("/").join(below).to_string_lossy().into_owned(),
            Err(_) => real.to_string_lossy().into_owned(),
        };
        let first = found.by_loader && !libraries.iter().any(|other| other.first && other.name == found.name);
        if let Some(known) = libraries.iter_mut().find(|other| other.file == file) {
            known.first |= first && known.name == found.name;
            continue;
        }
        if libraries.len() == MOST {
            break;
        }
        libraries.push(make_library(found, file, first, &real));
    }
    libraries
}

fn make_library(found: Found, file: String, first: bool, real: &Path) -> Library {
    let size = fs::metadata(real).map_or(0, |file| file.len());
    let (content, problem) = match elf::read_library(real, found.kind) {
        Ok(content) => (content, None),
        Err(problem) => (elf::LibraryContent::default(), Some(problem)),
    };
    let numbers = || {
        let (_, numbers) = file.rsplit_once(".so.")?;
        // A single number belongs to the name requested by programs, not to the version.
        (numbers.contains('.')).then(|| numbers.to_owned())
    };
    let by_name = matches!(
        found.kind,
        LibraryKind::Driver | LibraryKind::Nvml | LibraryKind::Verbs | LibraryKind::Nccl
    );
    Library {
        version: content.version.or_else(|| by_name.then(numbers).flatten()),
        suffix: content.suffix,
        build_id: content.build_id,
        interfaces: content.interfaces,
        // The loader skips a refused file, or ends the program: such a file is not in use.
        first: first && problem.is_none(),
        kind: found.kind,
        name: found.name,
        path: found.path,
        file,
        found: found.how,
        size,
        problem,
    }
}
