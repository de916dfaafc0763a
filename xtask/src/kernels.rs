//! `cargo xtask kernels`: compiles the kernels of nccl-bench's test data, and of gradients sent as bfloat16,
//! to PTX.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, Result, bail, ensure};
use libloading::{Library, Symbol};

use crate::wheels::NVRTC;
use crate::{cache, generated};

const DATA: &str = "crates/engine/src/data";
const FORMATS: [&str; 9] =
    ["Int8", "Int32", "Int64", "Float16", "Bfloat16", "Float32", "Float64", "Float8E4M3", "Float8E5M2"];

/// A PTX file to generate.
struct Kernel {
    /// The file of the source.
    source: &'static str,
    /// The PTX file.
    target: String,
    /// A macro, by NAME=VALUE.
    define: Option<String>,
    /// The least compute capability: 70 is 7.0.
    capability: u32,
}

/// Returns the kernels of each storage format, the one kernel for all formats (it needs a newer GPU), and the
/// kernels of gradients.
fn kernels() -> impl Iterator<Item = Kernel> {
    let of_formats = FORMATS.map(|name| Kernel {
        source: "crates/engine/src/data/kernels.cu",
        target: format!("{DATA}/ptx/{name}.ptx"),
        define: Some(format!("NB_FORMAT={name}")),
        capability: 70,
    });
    let invert = Kernel {
        source: "crates/engine/src/data/invert.cu",
        target: format!("{DATA}/ptx/Invert.ptx"),
        define: None,
        capability: 90,
    };
    let rounding = Kernel {
        source: "src/train/rounding.cu",
        target: "src/train/rounding.ptx".to_owned(),
        define: None,
        capability: 70,
    };
    of_formats.into_iter().chain([invert, rounding])
}

impl Kernel {
    /// The name of the source's file.
    fn file(&self) -> &'static str {
        self.source.rsplit('/').next().unwrap_or(self.source)
    }
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the committed PTX is not what the compiler makes
    #[arg(long)]
    check: bool,
}

/// Compiles the kernels, and writes or compares the PTX files.
///
/// # Errors
/// If the compiler is missing, the source does not compile, or (with `--check`) a file differs.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = cache::repository()?;
    let compiler = Nvrtc::load(&NVRTC.unpacked()?)?;
    let mut files = 0;
    for kernel in kernels() {
        let Kernel { source, target, capability, .. } = &kernel;
        let path = root.join(source);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let header = format!("// Made from {} by `cargo xtask kernels`. Do not edit.\n", kernel.file());
        let ptx = format!("{header}{}", compiler.compile(&text, &kernel)?);
        ensure!(
            ptx.contains("\n.version 8.0\n") && ptx.contains(&format!("\n.target sm_{capability}\n")),
            "NVRTC made another PTX version or target of {target} than 8.0 for sm_{capability}"
        );
        generated::put(&root.join(target), &ptx, arguments.check)?;
        files += 1;
    }
    println!("kernels: {files} PTX files {}", if arguments.check { "are up to date" } else { "written" });
    Ok(())
}

type Program = *mut c_void;
type Outcome = c_int;

/// The compiler, loaded at run time.
struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("libnvrtc.so.12");
        // SAFETY: NVRTC's initialisers only set up its own state.
        let library =
            unsafe { Library::new(&path) }.with_context(|| format!("loading {}", path.display()))?;
        Ok(Self { library })
    }

    fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>> {
        // SAFETY: each caller names a function of nvrtc.h and gives its type.
        unsafe { self.library.get(name) }.with_context(|| format!("NVRTC has no function {name}"))
    }

    /// Compiles a source to PTX.
    fn compile(&self, source: &str, kernel: &Kernel) -> Result<String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> Outcome;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Outcome;
        type Destroy = unsafe extern "C" fn(*mut Program) -> Outcome;

        let create: Symbol<Create> = self.symbol("nvrtcCreateProgram")?;
        let compile: Symbol<Compile> = self.symbol("nvrtcCompileProgram")?;
        let destroy: Symbol<Destroy> = self.symbol("nvrtcDestroyProgram")?;
        let source = CString::new(source)?;
        let name = CString::new(kernel.file())?;
        let mut options = vec![
            CString::new(format!("--gpu-architecture=compute_{}", kernel.capability))?,
            c"--std=c++17".to_owned(),
        ];
        if let Some(define) = &kernel.define {
            options.push(CString::new(format!("--define-macro={define}"))?);
        }
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the strings end in zero and outlive the call; no headers, so their arrays may be null.
        let created =
            unsafe { create(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        ensure!(created == 0, "nvrtcCreateProgram failed: {created}");
        // SAFETY: the program was created above; the options are as many strings as said.
        let compiled = unsafe { compile(program, c_int::try_from(options.len())?, options.as_ptr()) };
        let text = if compiled == 0 {
            self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        } else {
            self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
        };
        // SAFETY: the program was created above, and is not used again.
        unsafe { destroy(&mut program) };
        let text = text?;
        if compiled != 0 {
            bail!("NVRTC does not compile {} to {} (code {compiled}):\n{text}", kernel.source, kernel.target);
        }
        Ok(text)
    }

    /// Returns a text of a program.
    fn text(&self, program: Program, size_function: &str, text_function: &str) -> Result<String> {
        let get_size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> Outcome> =
            self.symbol(size_function)?;
        let get: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> Outcome> =
            self.symbol(text_function)?;
        let mut size = 0;
        // SAFETY: the program is alive; `size` is where the size goes.
        let code = unsafe { get_size(program, &mut size) };
        ensure!(code == 0, "{size_function} failed: {code}");
        let mut bytes = vec![0_u8; size + 1];
        // SAFETY: the program is alive; the buffer has room for the size from NVRTC.
        let code = unsafe { get(program, bytes.as_mut_ptr().cast()) };
        ensure!(code == 0, "{text_function} failed: {code}");
        Ok(CStr::from_bytes_until_nul(&bytes)?.to_str()?.to_owned())
    }
}
