//! Compares kernels.cu with value.rs on machines without a GPU: compiles the device code as C++. Also tests
//! the arithmetic of invert.cu.

use std::ffi::c_void;
use std::fs;
use std::process::Command;

use collectives::DataType;
use libloading::{Library, Symbol};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use super::format::FormatTag;
use super::recipe::Recipe;
use super::value::dispatch_format;
use super::{DataSpec, ElementSource, Fill, Op, bits_at};

type FillFunction = unsafe extern "C" fn(*mut c_void, u64, u64, *const Recipe, u64);
type CheckFunction = unsafe extern "C" fn(*const c_void, u64, u64, u64, *const Recipe, u64) -> Findings;

/// `Findings` of kernels.cu.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct Findings {
    wrong: u64,
    inverted_first: u64,
}

/// Kernels, compiled as C++. The threads of a grid run one after the other.
struct DeviceCode {
    library: Library,
    _folder: TempDir,
}

impl DeviceCode {
    fn compile_formats() -> Self {
        let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/src/data/kernels.cu");
        let mut source = format!("#include \"{kernels}\"\n");
        source += "static_assert(sizeof(Recipe) == 64, \"layout\");\n";
        for name in FormatTag::ALL {
            source += &format!(
                r#"
extern "C" void fill_{name:?}(void* buffer, u64 count, u64 first_index, const Recipe* recipe, u64 threads) {{
    for (u64 thread = 0; thread < threads; ++thread)
        fill_kind<{name:?}>(buffer, count, first_index, *recipe, thread, threads);
}}
extern "C" Findings check_{name:?}(const void* buffer, u64 count, u64 first_index, u64 base,
                                 const Recipe* recipe, u64 threads) {{
    Findings all = {{0, 0}};
    for (u64 thread = 0; thread < threads; ++thread) {{
        Findings one = check_kind<{name:?}>(buffer, count, first_index, base, *recipe, thread, threads);
        all.wrong += one.wrong;
        if (one.inverted_first > all.inverted_first) all.inverted_first = one.inverted_first;
    }}
    return all;
}}
"#
            );
        }
        Self::compile_source(&source)
    }

    fn compile_source(source: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("kernels.cpp");
        let output = folder.path().join("kernels.so");
        fs::write(&input, source).unwrap();
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let compiler = cc::Build::new()
            .cpp(true)
            .cargo_metadata(false)
            .target(&target)
            .host(&target)
            .opt_level(1)
            .out_dir(folder.path())
            .get_compiler();
        let mut command: Command = compiler.to_command();
        command.args(["-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-fsanitize=undefined"]);
        command.args(["-fsanitize-undefined-trap-on-error", "-Wall", "-Wextra", "-Werror", "-o"]);
        let status = command.arg(&output).arg(&input).status().unwrap();
        assert!(status.success(), "the kernels do not compile as C++: {status}");
        // SAFETY: the library has no initialisers.
        let library = unsafe { Library::new(&output) }.unwrap();
        Self { library, _folder: folder }
    }

    fn fill_format(
        &self,
        format: FormatTag,
        recipe: &Recipe,
        first_index: u64,
        bytes: &mut [u8],
        threads: u64,
    ) {
        let count = bytes.len() as u64 * 8 / u64::from(format.bits());
        let name = format!("fill_{format:?}");
        // SAFETY: the source above defines these functions; the buffer has `count` elements.
        unsafe {
            let fill: Symbol<FillFunction> = self.library.get(&name).unwrap();
            fill(bytes.as_mut_ptr().cast(), count, first_index, recipe, threads);
        }
    }

    fn check_format(
        &self,
        format: FormatTag,
        recipe: &Recipe,
        first_index: u64,
        base: u64,
        bytes: &[u8],
        threads: u64,
    ) -> Findings {
        let count = bytes.len() as u64 * 8 / u64::from(format.bits());
        let name = format!("check_{format:?}");
        // SAFETY: as above.
        unsafe {
            let check: Symbol<CheckFunction> = self.library.get(&name).unwrap();
            check(bytes.as_ptr().cast(), count, first_index, base, recipe, threads)
        }
    }
}

fn rank_numbers() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..20_u32, 1 => 20..3000_u32, 1 => 3000..=DataSpec::MAX_RANKS]
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    ranks: u32,
    op: Option<Op>,
    rank: u32,
    first_index: u64,
    count: usize,
    /// Elements between an 8-byte boundary and the buffer.
    lead: usize,
    threads: u64,
    /// Element to spoil.
    victim: usize,
    flipped_bit: u32,
}

fn test_cases() -> impl Strategy<Value = Case> {
    let op = prop_oneof![1 => Just(None), 6 => prop::sample::select(Op::ALL.to_vec()).prop_map(Some)];
    let index = prop_oneof![Just(0), any::<u32>().prop_map(u64::from), any::<u64>()];
    (
        any::<u64>(),
        rank_numbers(),
        op,
        any::<u32>(),
        index,
        1..70_usize,
        0..8_usize,
        1..5_u64,
        any::<(usize, u32)>(),
    )
        .prop_map(|(seed, ranks, op, rank, first_index, count, lead, threads, (victim, flipped_bit))| {
            Case {
                seed,
                ranks,
                op,
                rank: rank % ranks,
                first_index,
                count,
                lead,
                threads,
                victim: victim % count,
                flipped_bit,
            }
        })
}

/// Compares values, loops over partial words, and findings of both implementations.
fn compare_case(code: &DeviceCode, case: &Case, data_type: DataType) -> Result<(), TestCaseError> {
    let &Case { seed, ranks, op, first_index, threads, .. } = case;
    let spec = DataSpec { seed, ranks, op, data_type };
    let size = data_type.size();
    let lead = case.lead * size % 8;
    let length = case.count * size;
    let mut sources = vec![ElementSource::Rank(case.rank)];
    sources.extend(op.map(|_| ElementSource::Reduced));
    for source in sources {
        let (recipe, format) = Recipe::new(&spec, source).unwrap();
        let mut ours = vec![0; length];
        dispatch_format(format, recipe.kind, Fill { recipe: &recipe, first_index, bytes: &mut ours });

        // A buffer at any element boundary, between guards.
        let mut words = vec![0xa5a5_a5a5_a5a5_a5a5_u64; (lead + length).div_ceil(8) + 2];
        // SAFETY: the bytes of the words; any bits are valid for both.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), words.len() * 8) };
        let range = 8 + lead..8 + lead + length;
        if source != ElementSource::Reduced || ranks == 1 {
            code.fill_format(format, &recipe, first_index, &mut memory[range.clone()], threads);
            prop_assert_eq!(&memory[range.clone()], &ours[..], "{:?} {:?}", spec, source);
            prop_assert!(memory[..8 + lead].iter().all(|&byte| byte == 0xa5), "wrote before the buffer");
            prop_assert!(
                memory[8 + lead + length..].iter().all(|&byte| byte == 0xa5),
                "wrote behind the buffer"
            );
        }

        memory[range.clone()].copy_from_slice(&ours);
        let exact = Recipe { tolerance: 0, ..recipe };
        let found = code.check_format(format, &exact, first_index, 1000, &memory[range.clone()], threads);
        prop_assert_eq!(found, Findings { wrong: 0, inverted_first: 0 }, "{:?} {:?}", spec, source);

        let victim = 8 + lead + case.victim * size + case.flipped_bit as usize % size;
        memory[victim] ^= 1 << (case.flipped_bit / 8 % 8);
        let found = code.check_format(format, &exact, first_index, 1000, &memory[range.clone()], threads);
        let first = !(1000 + case.victim as u64);
        prop_assert_eq!(found, Findings { wrong: 1, inverted_first: first }, "{:?} {:?}", spec, source);
        let expected = bits_at(&recipe, format, first_index.wrapping_add(case.victim as u64));
        let mut one = [0; 8];
        one[..size].copy_from_slice(&ours[case.victim * size..][..size]);
        prop_assert_eq!(expected, u64::from_le_bytes(one));
    }
    Ok(())
}

#[test]
fn device_code_and_host_code_have_the_same_values_and_findings() {
    let code = DeviceCode::compile_formats();
    for data_type in DataType::ALL {
        let mut runner =
            TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
        runner.run(&test_cases(), |case| compare_case(&code, &case, data_type)).unwrap();
    }
}

/// The recipe's tolerance holds in both directions.
#[test]
fn device_code_tolerates_what_the_recipe_says() {
    let code = DeviceCode::compile_formats();
    let spec = DataSpec { seed: 3, ranks: 3, op: Some(Op::Avg), data_type: DataType::Float32 };
    let (recipe, format) = Recipe::new(&spec, ElementSource::Reduced).unwrap();
    let mut bytes = vec![0; 400];
    dispatch_format(format, recipe.kind, Fill { recipe: &recipe, first_index: 0, bytes: &mut bytes });
    for (position, change, wrong) in [(10, 2, 0), (20, -2_i32, 0), (30, 3, 1), (40, -3, 2)] {
        let element = &mut bytes[position * 4..][..4];
        let bits = u32::from_ne_bytes(element.try_into().unwrap());
        element.copy_from_slice(&bits.wrapping_add_signed(change).to_ne_bytes());
        let found = code.check_format(format, &recipe, 0, 0, &bytes, 1);
        let inverted_first = if wrong == 0 { 0 } else { !30 };
        assert_eq!(found, Findings { wrong, inverted_first }, "after {change} at {position}");
    }
}

#[test]
fn every_byte_of_a_buffer_is_inverted_and_no_other() {
    type Invert = unsafe extern "C" fn(*mut u8, u64, u64);
    let source = concat!("#include \"", env!("CARGO_MANIFEST_DIR"), "/src/data/invert.cu\"\n").to_owned()
        + r#"
extern "C" void invert(u8* buffer, u64 bytes, u64 threads) {
    for (u64 thread = 0; thread < threads; ++thread) invert_bytes(buffer, bytes, thread, threads);
}
"#;
    let code = DeviceCode::compile_source(&source);
    // SAFETY: the source above defines this function.
    let invert: Symbol<Invert> = unsafe { code.library.get("invert") }.unwrap();
    for (lead, length, threads) in (0..8)
        .flat_map(|lead| (0..70).flat_map(move |length| [16, 33].map(|threads| (lead, length, threads))))
    {
        let mut words = [0x1234_5678_9abc_def0_u64; 12];
        let before: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let range = 8 + lead..8 + lead + length;
        // SAFETY: the range lies within the words, and all their bits may change.
        unsafe { invert(words.as_mut_ptr().cast::<u8>().add(range.start), length as u64, threads) };
        let after = words.iter().flat_map(|word| word.to_ne_bytes());
        for (place, (before, after)) in before.into_iter().zip(after).enumerate() {
            let expected = if range.contains(&place) { !before } else { before };
            assert_eq!(after, expected, "byte {place} of {range:?}, {threads} threads");
        }
    }
}
