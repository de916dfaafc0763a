use super::{RustFile, Tree, report};

fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::new(files.iter().map(|(path, text)| RustFile::parse("sample", "", path, text).unwrap()).collect())
}

#[test]
fn functions_are_measured_from_signature_to_brace() {
    let text = "/// A.\n#[inline]\npub fn a(\n    b: u8,\n) -> u8 {\n    b\n}\n\
                macro_rules! m {\n    () => { fn no() {} };\n}\n\
                trait T {\n    fn none();\n    fn one() {}\n}\n\
                #[cfg(test)]\nmod tests {\n    fn two() {\n    }\n}\n";
    let file = tree(&[("src/lib.rs", text)]);
    let product = "src/lib.rs:3: a has 5 lines (product)\nsrc/lib.rs:13: one has 1 lines (product)\n";
    assert_eq!(report::functions_above(&file, false, 0), product);
    assert_eq!(report::functions_above(&file, true, 1), "src/lib.rs:17: two has 2 lines (tests)\n");
    let long = format!("fn long() {{\n{}}}\n", "    ();\n".repeat(79));
    assert_eq!(report::faults(&tree(&[("src/a.rs", &long)])), "src/a.rs:1: long has 81 lines (product)\n");
    assert_eq!(report::faults(&tree(&[("src/tests.rs", &long)])), "");
}

#[test]
fn modules_that_are_declared_for_tests_are_tests() {
    let root = "#[cfg(all(loom, unix))]\nmod model;\n#[cfg(any(test, feature = \"sample\"))]\nmod fuzz;\n\
                #[cfg(any(test, unix))]\nmod a;\n#[cfg(not(test))]\nmod b;\n";
    let paths = ["src/model.rs", "src/fuzz/x.rs", "tests/c.rs", "src/a.rs", "src/b/mod.rs"];
    let files: Vec<_> =
        paths.map(|path| (path, "struct S;\n")).into_iter().chain([("src/lib.rs", root)]).collect();
    let tests: Vec<_> = tree(&files).0.iter().map(RustFile::is_test).collect();
    assert_eq!(tests, [true, true, true, false, false, false]);
}

#[test]
fn two_modules_that_name_each_other_are_a_circle() {
    let a = ("src/x/a.rs", "\nuse super::{b::{self, B}, c};");
    let circles = |b| report::faults(&tree(&[a, ("src/x/b.rs", b)]));
    let circle = "circles of modules:\n- 2 modules\n  - sample::x::a:2 -> x::b\n  - sample::x::b:1 -> x::a\n";
    assert_eq!(circles("fn f() { crate::x::a::g(); }"), circle);
    assert_eq!(circles("mod m { fn f() { print!(\"{}\", super::super::a::G); } }"), circle);
    assert_eq!(circles("use crate::x::{c::a, A}; struct S { a: (A) }"), "");
    assert_eq!(circles("#[cfg(test)]\nmod tests { use super::super::a::A; }"), "");
}

#[test]
fn long_comments_are_faults_except_tables_and_examples() {
    let long = "x ".repeat(60);
    let text =
        format!("//! {long}\n//! | {long} |\n//! ```\n//! {long}\n//! ```\n\n// {long}\nfn a() {{}}\n");
    let fault = |line| format!("src/lib.rs:{line}: a comment above 110 columns\n");
    assert_eq!(report::faults(&tree(&[("src/lib.rs", &text)])), fault(1) + &fault(7));
}

#[test]
fn a_block_of_doc_comments_counts_once() {
    let text = "//! What it is.\n//! How it goes.\n\n/// Whether.\n#[inline]\n/// Asks.\nfn a() {}\n\
                //// Of no kind.\n/// A.\nfn b() {}\n";
    let tree = tree(&[("src/lib.rs", text)]);
    assert_eq!(report::doc_starts(&tree), "src/lib.rs:1: What it is.\nsrc/lib.rs:4: Whether.\n");
    assert!(report::tables(&tree).contains("| sample | 1 | 10 | 0 | 0 | 4 | 2 | 50.0 % |"));
    assert_eq!(report::faults(&tree), "2 of 4 doc comments begin with What, Whether, How, As or Of\n");
}
