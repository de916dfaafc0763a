//! `nccl-bench man`: manual pages, generated from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man as Renderer;
use clap_mangen::roff::{Roff, roman};
use engine::supervision::Stop;

use super::help::guide;
use super::output_file::Maker;
use super::{Context, path_lines};
use crate::exit::{ExitError, print_text};

/// The section of manual pages for commands.
const COMMANDS: &str = "1";
/// The section of manual pages about topics.
const TOPICS: &str = "7";
/// The manual's name, at the top of every page.
const MANUAL: &str = "nccl-bench";

/// The option with the name of a folder.
const FOLDER: &str = "output";

/// The option for replacing files of other programs.
const FORCE: &str = "force";

/// Description of this command's pages. The title of each begins with this program's name.
const MAKER: Maker = Maker {
    mark: ".TH nccl-bench",
    product: "manual page",
    advice: "name another folder",
    input: "is read by this command",
};

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Man;

impl super::Command for Man {
    fn define_command(&self) -> Command {
        Command::new("man")
            .about("Print the manual page")
            .arg(
                clap::Arg::new(FOLDER)
                    .long(FOLDER)
                    .value_name("FOLDER")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help("Write the pages of all commands and topics into this folder instead"),
            )
            .arg(
                clap::Arg::new(FORCE)
                    .long(FORCE)
                    .action(clap::ArgAction::SetTrue)
                    .requires(FOLDER)
                    .help("Replace files with these names, whatever they contain"),
            )
    }

    fn run_command(&self, matches: &clap::ArgMatches, context: &Context<'_>) -> Result<u8, ExitError> {
        let Some(folder) = matches.get_one::<PathBuf>(FOLDER) else {
            let page = main_page(&build_command(context.root)).map_err(Stop::from)?;
            return print_text(&String::from_utf8_lossy(&page.text));
        };
        let written = write_pages(context.root, folder, matches.get_flag(FORCE))
            .map_err(|error| ExitError::refused(format!("{error:#}")))?;
        print_text(&path_lines(&written))
    }
}

/// A manual page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    /// Its file: `nccl-bench-allreduce.1`.
    file: String,
    /// Its text, in roff.
    text: Vec<u8>,
}

/// Returns all manual pages: the page of `command`, one for each of its commands, and one for each topic of
/// `help`.
///
/// # Errors
/// Never in practice: it writes to memory.
fn render_pages(command: &Command) -> io::Result<Vec<Page>> {
    let command = build_command(command);
    let mut pages = vec![main_page(&command)?];
    pages_below(&command, &command, &mut pages)?;
    for (name, summary) in guide::all_topics() {
        pages.push(topic_page(&command, name, summary)?);
    }
    Ok(pages)
}

/// Adds the pages of all commands below `parent`.
fn pages_below(parent: &Command, root: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    for sub in parent.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages.push(command_page(sub, root)?);
        pages_below(sub, root, pages)?;
    }
    Ok(())
}

/// Writes all manual pages below `folder`, which is created if needed: pages of commands to `man1`, pages of
/// topics to `man7`. Returns the paths of the written files.
///
/// # Errors
/// When a folder or file cannot be written, or a file is not a manual page of this program and `force` is not
/// set. The error names it.
fn write_pages(command: &Command, folder: &Path, force: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut texts = Vec::new();
    for page in render_pages(command)? {
        let section = page.file.rsplit('.').next().unwrap_or(COMMANDS);
        let place = folder.join(format!("man{section}"));
        fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        texts.push((place.join(&page.file), String::from_utf8_lossy(&page.text).into_owned()));
    }
    MAKER.write_all(&texts, force, &[])?;
    Ok(texts.into_iter().map(|(path, _)| path).collect())
}

/// Builds the command in the same way as clap before parsing. clap's own `help` gets no page.
fn build_command(command: &Command) -> Command {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    command
}

fn main_page(command: &Command) -> io::Result<Page> {
    let mut page = command_page(command, command)?;
    let mut roff = Roff::default();
    roff.control("SH", ["TOPICS"]);
    for (name, summary) in guide::all_topics() {
        roff.control("TP", []);
        roff.text([roman(format!("{}({TOPICS})", topic_name(command, name)))]);
        roff.text([roman(summary)]);
    }
    roff.to_writer(&mut page.text)?;
    Ok(page)
}

/// Returns the page of a command, with the line breaks of its examples.
fn command_page(command: &Command, root: &Command) -> io::Result<Page> {
    let version = root.get_version().unwrap_or_default();
    let man = Renderer::new(command.clone())
        .section(COMMANDS)
        .source(format!("{} {version}", root.get_name()).trim_end())
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        write_verbatim("NOTES", &after.to_string(), &mut text)?;
    }
    Ok(Page { file: man.get_filename(), text })
}

fn topic_page(root: &Command, name: &str, summary: &str) -> io::Result<Page> {
    let full = topic_name(root, name);
    let version = format!("{} {}", root.get_name(), root.get_version().unwrap_or_default());
    let mut roff = Roff::default();
    roff.control("TH", [full.as_str(), TOPICS, "", version.trim_end(), MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{full} - {summary}"))]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    // The first line repeats the name section.
    let body = guide::topic_text(name).and_then(|text| text.split_once("\n\n")).map_or("", |(_, body)| body);
    write_verbatim("DESCRIPTION", body, &mut text)?;
    Ok(Page { file: format!("{full}.{TOPICS}"), text })
}

fn topic_name(root: &Command, topic: &str) -> String {
    format!("{}-{topic}", root.get_name())
}

/// Writes a section with its line breaks.
fn write_verbatim(title: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut roff = Roff::default();
    roff.control("SH", [title]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_writer(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn command() -> Command {
        Command::new("bench")
            .version("1.2.3")
            .about("Measures")
            .after_help("Examples:\n  bench all -b 8      all of it\n  .dot and 'quote'")
            .subcommand(
                Command::new("all").about("Every collective").arg(
                    Arg::new("minbytes").short('b').long("minbytes").value_name("SIZE").help("Smallest"),
                ),
            )
            .subcommand(
                Command::new("look")
                    .about("At parts")
                    .subcommand(Command::new("info").about("What is there")),
            )
            .subcommand(Command::new("secret").hide(true))
    }

    fn text(page: &Page) -> String {
        String::from_utf8(page.text.clone()).unwrap()
    }

    #[test]
    fn there_is_a_page_for_each_command_and_topic() {
        let pages = render_pages(&command()).unwrap();
        let files: Vec<_> = pages.iter().map(|page| page.file.as_str()).collect();
        assert_eq!(files[..4], ["bench.1", "bench-all.1", "bench-look.1", "bench-look-info.1"]);
        assert_eq!(files[4], "bench-launchers.7");
        assert_eq!(files.len(), 4 + guide::all_topics().len());
        let main = text(&pages[0]);
        for part in ["bench 1.2.3", "bench\\-all", "bench\\-busbw(7)", "  bench all \\-b 8      all of it"] {
            assert!(main.contains(part), "{part} is not in:\n{main}");
        }
        // A line beginning with a control character would be a command to roff.
        assert!(main.contains("\n  .dot and"), "{main}");
        assert!(!main.contains("secret"), "{main}");
        assert!(text(&pages[1]).contains("minbytes"));
        let topic = pages.iter().find(|page| page.file == "bench-busbw.7").unwrap();
        assert!(text(topic).contains("2(n\\-1)/n"));
    }

    #[test]
    fn pages_are_written_where_man_looks_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("share/man");
        let written = write_pages(&command(), &place, false).unwrap();
        assert!(written.contains(&place.join("man1/bench.1")));
        assert!(written.contains(&place.join("man7/bench-sizes.7")));
        assert!(written.iter().all(|path| path.exists()));
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").unwrap();
        let problem = write_pages(&command(), &blocked, false).unwrap_err().to_string();
        assert!(problem.contains("file/man1"), "{problem}");
    }

    #[test]
    fn a_file_that_is_no_page_of_ours_is_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let command = command().name("nccl-bench");
        let all = write_pages(&command, folder.path(), false).unwrap();
        let again = |force| write_pages(&command, folder.path(), force);
        assert_eq!(again(false).unwrap(), all);
        for path in &all {
            fs::write(path, "mine").unwrap();
            let problem = again(false).unwrap_err().to_string();
            assert!(problem.contains("exists and is not a manual page of nccl-bench; "), "{problem}");
            assert_eq!(again(true).unwrap(), all);
        }
    }
}
