//! Names of options in messages.

/// Returns the flag of the argument with this id, the short one if there is one. Other names, such as those
/// of variables, stay as they are.
pub(super) fn name_option(command: &clap::Command, id: &str) -> String {
    let argument = command.get_arguments().find(|argument| argument.get_id() == id);
    match argument.map(|argument| (argument.get_short(), argument.get_long())) {
        // Users type only the value of a hidden argument.
        Some(_) if argument.is_some_and(clap::Arg::is_hide_set) => format!("the {id}"),
        Some((Some(letter), _)) => format!("-{letter}"),
        Some((None, Some(name))) => format!("--{name}"),
        _ => id.to_owned(),
    }
}
