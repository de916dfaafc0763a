//! Files of the kernel: one value, one line, or one folder per device.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use crate::words::natural_key;

/// Largest number of bytes read from a file. The kernel's files are shorter.
const LONGEST: u64 = 4 << 20;

/// Names in a folder, in natural order: `mlx5_2` comes before `mlx5_10`.
pub(crate) fn names_in_folder(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_by_cached_key(|name| natural_key(name));
    names
}

/// Returns the text of a file, without the blanks around it.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the number in a file.
pub(crate) fn read_number<T: FromStr>(path: &Path) -> Option<T> {
    read_text(path)?.parse().ok()
}

/// Returns the number in a file with hexadecimal digits, with or without `0x`.
pub(super) fn read_hexadecimal(path: &Path) -> Option<u32> {
    let text = read_text(path)?;
    u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// Returns the last part of the target of a link.
pub(super) fn link_name(path: &Path) -> Option<String> {
    let link = fs::read_link(path).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Returns the driver of the device in this folder.
pub(super) fn driver_of_device(device: &Path) -> Option<String> {
    link_name(&device.join("driver"))
}

/// Returns the value of a line such as `MemTotal:  131981020 kB`, without its name.
pub(super) fn value_of_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}
