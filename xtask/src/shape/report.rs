//! The measures as text.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use super::modules::{circles, edges};
use super::source::{COLUMNS, RustFile};

/// The report in Markdown.
pub(super) fn tables(tree: &Tree) -> String {
    let (number, circles) = circle_list(tree);
    let circles = format!("## Circles of modules: {number}\n\n{circles}");
    [crates(tree), functions(tree), long_files(tree), circles, types(tree)].join("\n")
}

fn table(heading: &str, columns: &str, rows: impl IntoIterator<Item = String>) -> String {
    let rule = "|---".repeat(columns.split(" | ").count());
    let rows: String = rows.into_iter().map(|row| format!("| {row} |\n")).collect();
    format!("## {heading}\n\n| {columns} |\n{rule}|\n{rows}")
}

fn crates(tree: &Tree) -> String {
    let row = |name: &str| {
        let files: Vec<_> = tree.0.iter().filter(|file| name == "sum" || file.package == name).collect();
        let sum = |number: &dyn Fn(&RustFile) -> usize| files.iter().map(|file| number(file)).sum::<usize>();
        let tests = sum(&|file| file.is_test().into());
        let (lines, test_lines) = (sum(&|file| file.lines), sum(&|file| file.test_lines.len()));
        let (docs, starts) = (sum(&|file| file.docs.len()), sum(&|file| file.doc_starts().count()));
        let (product, product_lines) = (files.len() - tests, lines - test_lines);
        let share = 100.0 * starts as f64 / docs.max(1) as f64;
        format!(
            "{name} | {product} | {product_lines} | {tests} | {test_lines} | {docs} | {starts} | {share:.1} %"
        )
    };
    let columns = "crate | product files | product lines | test files | test lines | doc comments | \
                   that begin with What, Whether, How, As or Of | share";
    let names: BTreeSet<_> = tree.0.iter().map(|file| file.package.as_str()).collect();
    table("Crates", columns, names.into_iter().chain(["sum"]).map(row))
}

fn functions(tree: &Tree) -> String {
    let (mut counts, mut longest) = (Vec::new(), Vec::new());
    for (of, tests) in [("product", false), ("tests", true)] {
        let mut functions: Vec<_> = tree.functions(tests).collect();
        functions.sort_by_key(|(_, function)| Reverse(function.length));
        let above = |limit| functions.iter().filter(|(_, function)| function.length > limit).count();
        counts.push(format!("{of} | {} | {} | {} | {}", functions.len(), above(60), above(80), above(100)));
        longest.extend(functions.iter().take(10).map(|(file, function)| {
            format!("{of} | {} | {}:{} | {}", function.name, file.path, function.line, function.length)
        }));
    }
    let counts = table("Functions", "of | number | above 60 lines | above 80 | above 100", counts);
    counts + "\n" + &table("Longest functions", "of | function | place | lines", longest)
}

fn long_files(tree: &Tree) -> String {
    let mut files: Vec<_> = tree.0.iter().filter(|file| file.lines > 500).collect();
    files.sort_by_key(|file| (file.is_test(), Reverse(file.lines)));
    let tests = files.iter().filter(|file| file.is_test()).count();
    let heading = format!("Files above 500 lines: product {}, tests {tests}", files.len() - tests);
    let rows = files.iter().map(|file| format!("{} | {} | {}", file.path, file.lines, file.test_lines.len()));
    table(&heading, "file | lines | of which tests", rows)
}

/// Number and edges of the circles among modules.
fn circle_list(tree: &Tree) -> (usize, String) {
    let edges = edges(&tree.0);
    let circles = circles(&edges);
    let mut list = String::new();
    for circle in &circles {
        list += &format!("- {} modules\n", circle.len());
        let inside = |(from, to): &(_, _)| circle.contains(from) && circle.contains(to);
        for ((from, to), line) in edges.iter().filter(|(edge, _)| inside(edge)) {
            list += &format!("  - {}:{line} -> {}\n", from.join("::"), to[1..].join("::"));
        }
    }
    (circles.len(), list)
}

fn types(tree: &Tree) -> String {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in &tree.0 {
        for (line, name) in file.types.iter().filter(|(line, _)| !file.test_lines.contains(line)) {
            places.entry(name).or_default().push(format!("{}:{line}", file.path));
        }
    }
    let twice = places.values().filter(|places| places.len() == 2).count();
    let mut often: Vec<_> = places.into_iter().filter(|(_, places)| places.len() > 2).collect();
    often.sort_by_key(|(_, places)| Reverse(places.len()));
    let heading = format!("Names of types in three places or more: {} (in two: {twice})", often.len());
    let rows = often.iter().map(|(name, at)| format!("{name} | {} | {}", at.len(), at.join(", ")));
    table(&heading, "name | number | places", rows)
}

pub(super) fn doc_starts(tree: &Tree) -> String {
    let all =
        tree.0.iter().flat_map(|file| file.doc_starts().map(move |(line, text)| (&file.path, line, text)));
    all.map(|(path, line, text)| format!("{path}:{line}: {text}\n")).collect()
}

/// The functions of more than `limit` lines in the tests, or in the product, one a line.
pub(super) fn functions_above(tree: &Tree, tests: bool, limit: usize) -> String {
    let long = tree.functions(tests).filter(|(_, function)| function.length > limit);
    let of = if tests { "tests" } else { "product" };
    long.map(|(file, f)| format!("{}:{}: {} has {} lines ({of})\n", file.path, f.line, f.name, f.length))
        .collect()
}

/// Returns the faults for `--check`, or an empty text.
pub(super) fn faults(tree: &Tree) -> String {
    let mut faults = functions_above(tree, false, 80);
    let docs: usize = tree.0.iter().map(|file| file.docs.len()).sum();
    let starts: usize = tree.0.iter().map(|file| file.doc_starts().count()).sum();
    if starts * 100 > docs * 6 {
        faults += &format!("{starts} of {docs} doc comments begin with What, Whether, How, As or Of\n");
    }
    for file in &tree.0 {
        for line in &file.long_comments {
            faults += &format!("{}:{line}: a comment above {COLUMNS} columns\n", file.path);
        }
    }
    let (number, circles) = circle_list(tree);
    if number > 0 {
        faults += &format!("circles of modules:\n{circles}");
    }
    faults
}

/// The subjects above 72 characters in a log with an abbreviated hash and a subject a line.
pub(super) fn subjects(log: &str) -> String {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let long = commits.filter(|(_, subject)| subject.chars().count() > 72);
    let rows: Vec<_> = long.map(|(hash, subject)| format!("{hash} | {subject}")).collect();
    let heading =
        format!("Subjects of commits above 72 characters: {} of {}", rows.len(), log.lines().count());
    format!("\n{}", table(&heading, "commit | subject", rows))
}
