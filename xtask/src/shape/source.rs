//! Measures of one Rust file, from its text, its tokens and its syntax tree.

use std::collections::BTreeSet;

use anyhow::Result;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ExprLit, Item, Lit, Meta, Signature, Token, punctuated::Punctuated};

/// Configurations of tests only.
const TEST_CONFIGURATIONS: [&str; 4] = ["test", "doctest", "loom", "fuzzing"];
/// A feature enabled only by tests, for records and hosts shared by several crates' tests.
const TEST_FEATURE: &str = "sample";
/// Forbidden first words of a doc comment.
const DOC_STARTS: [&str; 5] = ["What", "Whether", "How", "As", "Of"];

/// Largest length of a line, as in `rustfmt.toml`. rustfmt does not wrap comments.
pub(super) const COLUMNS: usize = 110;

/// Names from the package to a module or an item.
pub(super) type Path = Vec<String>;

pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    /// Lines from the signature to the closing brace.
    pub(super) length: usize,
}

#[derive(Default)]
pub(super) struct RustFile {
    pub(super) package: String,
    pub(super) path: String,
    /// The module of a file under `src/`; empty for others.
    pub(super) module: Path,
    pub(super) lines: usize,
    /// Numbers of the lines compiled for tests only.
    pub(super) test_lines: BTreeSet<usize>,
    /// Modules in other files, compiled for tests only.
    pub(super) test_modules: Vec<Path>,
    pub(super) functions: Vec<Function>,
    /// Line and name of each type.
    pub(super) types: Vec<(usize, String)>,
    /// Line and first line of text of each doc comment.
    pub(super) docs: Vec<(usize, String)>,
    /// Numbers of comment lines above [`COLUMNS`] that a person could wrap.
    pub(super) long_comments: Vec<usize>,
    /// Line and absolute path of each path in the file.
    pub(super) references: Vec<(usize, Path)>,
}

/// Returns the lines of too long comments, except in tables and examples of code.
fn find_long_comments(text: &str) -> Vec<usize> {
    let mut is_example = false;
    let mut long = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let comment =
            line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
        let Some(comment) = comment else {
            is_example = false;
            continue;
        };
        is_example ^= comment.starts_with("```");
        let can_wrap = !is_example && !comment.starts_with('|') && !comment.starts_with("http");
        if can_wrap && line.chars().count() > COLUMNS {
            long.push(number);
        }
    }
    long
}

impl RustFile {
    /// Reads the text of the file `inside` the folder of `package`.
    pub(super) fn parse(package: &str, folder: &str, inside: &str, text: &str) -> Result<Self> {
        let (path, module, docs) = (format!("{folder}{inside}"), module(package, inside), doc_comments(text));
        let long_comments = find_long_comments(text);
        let (package, lines) = (package.to_owned(), text.lines().count());
        let mut source = Self { package, path, module, lines, docs, long_comments, ..Self::default() };
        source.visit_file(&syn::parse_file(text)?);
        source.add_references(text.parse().map_err(syn::Error::from)?, &source.module.clone(), &[]);
        let named = inside.split('/').any(|part| ["tests", "tests.rs"].contains(&part));
        if named || !(inside.starts_with("src/") || inside == "build.rs") {
            source.test_lines.extend(1..=lines);
        }
        Ok(source)
    }

    /// True if the file has tests only.
    pub(super) fn is_test(&self) -> bool {
        self.test_lines.len() == self.lines
    }

    /// Returns the doc comments that begin with one of [`DOC_STARTS`].
    pub(super) fn doc_starts(&self) -> impl Iterator<Item = &(usize, String)> {
        let first = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("").to_owned();
        self.docs.iter().filter(move |(_, text)| DOC_STARTS.contains(&&*first(text)))
    }

    /// Adds the paths in `use`, code and macros. Paths in the braces of a `use` begin with `prefix`.
    fn add_references(&mut self, tokens: TokenStream, scope: &[String], prefix: &[String]) {
        let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "mod" => {
                    let name = tokens.next().map_or_else(String::new, |name| name.to_string());
                    let scope = absolute(scope, &[name]);
                    if let Some(TokenTree::Group(body)) = tokens.next() {
                        self.add_references(body.stream(), &scope, &[]);
                    }
                }
                TokenTree::Ident(first) => {
                    let mut path = [prefix, &[first.to_string()]].concat();
                    while tokens.next_if(colon).is_some() && tokens.next_if(colon).is_some() {
                        match tokens.next_if(|token| !matches!(token, TokenTree::Punct(_))) {
                            Some(TokenTree::Group(group)) => {
                                self.add_references(group.stream(), scope, &path);
                                path.clear();
                            }
                            name => path.extend(name.map(|name| name.to_string())),
                        }
                    }
                    self.references.push((first.span().start().line, absolute(scope, &path)));
                }
                TokenTree::Group(group) => self.add_references(group.stream(), scope, &[]),
                _ => {}
            }
        }
    }

    fn mark_tests(&mut self, attributes: &[Attribute], item: Span) {
        if is_test(attributes) {
            self.test_lines.extend(item.start().line..=item.end().line);
        }
    }

    fn add_function(&mut self, signature: &Signature, block: &Block) {
        let line = signature.span().start().line;
        let length = block.span().end().line + 1 - line;
        self.functions.push(Function { name: signature.ident.to_string(), line, length });
    }
}

impl<'ast> Visit<'ast> for RustFile {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Struct(item) => (&*item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&*item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&*item.attrs, Some(&item.ident)),
            Item::Type(item) => (&*item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&*item.attrs, None),
            Item::Impl(item) => (&*item.attrs, None),
            Item::Mod(item) => (&*item.attrs, None),
            Item::Use(item) => (&*item.attrs, None),
            _ => (&[][..], None),
        };
        self.mark_tests(attributes, item.span());
        self.types.extend(name.map(|name| (name.span().start().line, name.to_string())));
        match item {
            Item::Fn(function) => self.add_function(&function.sig, &function.block),
            Item::Mod(module) if module.content.is_none() && is_test(attributes) => {
                self.test_modules.push(absolute(&self.module, &[module.ident.to_string()]));
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.mark_tests(&function.attrs, function.span());
        self.add_function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        function.default.iter().for_each(|block| self.add_function(&function.sig, block));
        visit::visit_trait_item_fn(self, function);
    }
}

fn module(package: &str, inside: &str) -> Path {
    let Some(names) = inside.strip_prefix("src/") else { return Path::new() };
    let names = [package].into_iter().chain(names.trim_end_matches(".rs").split('/'));
    names.filter(|name| !["lib", "main", "mod"].contains(name)).map(str::to_owned).collect()
}

/// A path in the code of the module `scope`, from the package.
fn absolute(scope: &[String], path: &[String]) -> Path {
    let mut absolute = scope.to_vec();
    for name in path {
        match name.as_str() {
            "crate" => absolute.truncate(1),
            "super" => drop(absolute.pop()),
            "self" => {}
            name => absolute.push(name.to_owned()),
        }
    }
    absolute
}

/// True for items with `#[test]`, or with a `#[cfg]` that holds for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| implies_test(&attribute.meta))
}

fn implies_test(meta: &Meta) -> bool {
    if let Meta::NameValue(pair) = meta {
        return pair.path.is_ident("feature") && is_text(&pair.value, TEST_FEATURE);
    }
    let Meta::List(list) = meta else {
        return TEST_CONFIGURATIONS.iter().any(|name| meta.path().is_ident(name));
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
    if list.path.is_ident("any") {
        return parts.iter().all(implies_test);
    }
    (list.path.is_ident("cfg") || list.path.is_ident("all")) && parts.iter().any(implies_test)
}

fn is_text(value: &Expr, text: &str) -> bool {
    matches!(value, Expr::Lit(ExprLit { lit: Lit::Str(found), .. }) if found.value() == text)
}

/// Line and first line of text of each block of `///` or `//!`.
fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut last = None;
    for (index, line) in text.lines().map(str::trim_start).enumerate() {
        let marker =
            ["///", "//!"].into_iter().find(|start| line.starts_with(start) && !line.starts_with("////"));
        if marker.is_some() && marker != last {
            found.push((index + 1, line[3..].trim().to_owned()));
        }
        last = marker;
    }
    found
}
