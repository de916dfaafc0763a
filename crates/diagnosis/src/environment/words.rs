//! Values in the texts of shells, YAML, JSON and Python.

use super::setting::is_collected;

/// Returns true for a text with `NAME=value` on each line, without quotes: the output of `env`.
pub(super) fn is_output_of_env(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).peekable();
    lines.peek().is_some()
        && lines.all(|line| {
            let Some((name, value)) = line.split_once('=') else { return false };
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.%()".contains(&byte));
            is_name && !(is_collected(name) && value.trim_end().ends_with('\\'))
        })
}

/// Returns true before the name of an entry: `{name: `, `"name":"`.
pub(super) fn is_name_of_entry(before: &str) -> bool {
    let before = before.trim_end_matches(['"', '\'', ' ']);
    let Some(before) = before.strip_suffix(':') else { return false };
    before.trim_end_matches(['"', '\'', ' ']).ends_with("name")
}

/// Returns true at the end of a text with an open list of YAML: `command: [mpirun, -x, `.
pub(super) fn ends_in_list(text: &str) -> bool {
    let Some(start) = text.rfind('[').filter(|&start| !text[start..].contains(']')) else { return false };
    let before = text[..start].trim_end();
    before.ends_with(':') || before == "-"
}

/// Returns the value behind a name: `=value`, `: value` of a mapping, `"] = "value"` of Python.
pub(super) fn assigned_value(before: &str, after: &str, in_list: bool, is_env: bool) -> Option<String> {
    if let Some(rest) = after.strip_prefix('=') {
        // A quote opened before the name ends the value.
        let quote = find_open_quote(before);
        let rest = quote.map_or(rest, |quote| rest.split(quote).next().unwrap_or_default());
        // A command may follow the variables: NAME=value ./program.
        let is_word = |word: &str| !word.contains(['=', '/', '.', ';', '&', '|', '<', '>', '"', '\'']);
        let is_plain = rest.split_whitespace().skip(1).all(|word| is_word(word) && !word.starts_with('-'));
        let is_whole = before.is_empty() && (is_plain && is_env || !rest.contains([' ', '\t']));
        let is_list = is_comma_list(before);
        return Some(match () {
            () if is_whole => remove_quotes(rest),
            () if is_list => parse_shell_word(rest.split(',').next().unwrap_or_default()),
            // Open MPI separates the variables of this option.
            () if before.contains("env_list") && quote.is_some() => {
                rest.split(';').next().unwrap_or_default().to_owned()
            }
            // The quote belongs to the whole option: -x "NAME=value".
            () if before.ends_with(['"', '\'']) && !is_command(rest) => rest.to_owned(),
            () if quote.is_some() => parse_shell_word(rest),
            () if in_list => parse_scalar(rest.split([',', ']']).next().unwrap_or_default()),
            () => parse_shell_word(rest),
        });
    }
    let quote = before.chars().last().filter(|last| ['"', '\''].contains(last));
    let rest = match quote {
        Some(quote) => after.strip_prefix(quote)?,
        None => after,
    };
    if let Some(rest) = rest.strip_prefix(']') {
        let value = rest.trim_start().strip_prefix('=')?.trim_start();
        return value.starts_with(['"', '\'']).then(|| parse_shell_word(value));
    }
    let is_key =
        matches!(before.trim(), "" | "-" | "{" | "\"" | "'") || before.trim_end().ends_with([',', '{', '"']);
    let value = rest
        .strip_prefix(':')
        .filter(|value| is_key && (value.starts_with(' ') || value.starts_with('"')))?;
    Some(parse_scalar(value.trim_end().trim_end_matches(['}', ','])))
}

/// Returns true inside the value of an option with commas between its variables: `--export=A=1,`, `qsub -v
/// A=1,`.
pub(super) fn is_comma_list(before: &str) -> bool {
    const OPTIONS: [(&str, &str); 8] = [
        ("", "--export"),
        ("qsub", "-v"),
        ("#PBS", "-v"),
        ("#$", "-v"),
        ("bsub", "-env"),
        ("#BSUB", "-env"),
        ("singularity", "--env"),
        ("apptainer", "--env"),
    ];
    let mut words = before.rsplit([' ', '\t']);
    // The word with the name, and the word before it.
    let (own, previous) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    OPTIONS.iter().any(|(command, option)| {
        let is_option = previous == *option || own.starts_with(&format!("{option}="));
        is_option && before.contains(command)
    })
}

/// Returns the open quote at the end of a text.
fn find_open_quote(text: &str) -> Option<char> {
    text.chars().fold(None, |open, letter| match open {
        None if ['"', '\''].contains(&letter) => Some(letter),
        Some(quote) if quote == letter => None,
        open => open,
    })
}

/// Returns true for a value with a further variable or a program behind it: `22 ./train`, `22 NCCL_DEBUG=WARN
/// ./train`.
fn is_command(rest: &str) -> bool {
    rest.split_whitespace().skip(1).any(|word| word.contains(['=', '/', '.']) || word.starts_with('-'))
}

/// Returns a lower bound of the length of the text consumed by a value.
pub(super) fn consumed_length(after: &str, value: &str) -> usize {
    after.find(value).map_or(0, |start| start + value.len()).min(after.len())
}

/// Returns the value of a key, at the beginning of a line of YAML.
pub(super) fn value_of_key<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let line = line.trim_start_matches(['"', '\'']);
    line.strip_prefix(name)?.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':')
}

/// Returns a scalar of YAML or JSON, without anchor, quotes and comment. Returns `$` for an alias (`*name`):
/// it counts as computed.
pub(super) fn parse_scalar(text: &str) -> String {
    let text = text.trim();
    if text.strip_prefix('*').is_some_and(|name| name.starts_with(char::is_alphanumeric)) {
        return "$".to_owned();
    }
    let text = match text.strip_prefix('&').and_then(|text| text.split_once(' ')) {
        Some((_, value)) => value.trim(),
        None => text,
    };
    for quote in ['"', '\''] {
        if let Some(rest) = text.strip_prefix(quote) {
            return rest.split(quote).next().unwrap_or_default().to_owned();
        }
    }
    text.split(" #").next().unwrap_or_default().trim().trim_end_matches(',').to_owned()
}

/// Returns a word of a shell, without quotes.
pub(super) fn parse_shell_word(text: &str) -> String {
    let mut value = String::new();
    let mut quote = None;
    for letter in text.chars() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => value.push(letter),
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if letter.is_whitespace() || [';', '&', '|', ')', '\\', '<', '>'].contains(&letter) => break,
            None => value.push(letter),
        }
    }
    value
}

pub(super) fn remove_quotes(text: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inside) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inside.to_owned();
        }
    }
    text.to_owned()
}
