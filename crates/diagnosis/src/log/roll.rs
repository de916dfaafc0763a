//! Numbers of ranks or tasks that the messages of a rule list as present or missing.

use std::collections::BTreeSet;

use crate::knowledge::rules::Rule;
use crate::words::ranges_text;

/// Largest number in a list, and largest number of lists.
const MOST: u32 = 65_536;
const LISTS: usize = 16;

/// The lists of a rule, read through the named groups of its pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Different lists of those that came.
    lists: BTreeSet<BTreeSet<u32>>,
    /// Those that came, of all messages.
    present: BTreeSet<u32>,
    missing: BTreeSet<u32>,
    /// Number of those that have to come.
    size: Option<u32>,
    /// Largest number of those that came, as a message counts them.
    came: Option<u32>,
}

impl Roll {
    /// Reads the lists of a message.
    pub(super) fn note_message(&mut self, rule: &Rule, message: &[u8]) {
        let Some(pattern) = rule.pattern.as_ref() else { return };
        pattern.read_groups(message, |group, text| {
            let text = String::from_utf8_lossy(text);
            let numbers = text.split(|character: char| !character.is_ascii_digit());
            let numbers = numbers.filter_map(|number| number.parse().ok()).filter(|number| *number < MOST);
            let list: BTreeSet<u32> = numbers.collect();
            match group {
                "size" => self.size = list.first().copied(),
                "came" => self.came = self.came.max(list.first().copied()),
                "missing" => self.missing.extend(list),
                _ => {
                    self.present.extend(&list);
                    if self.lists.len() < LISTS {
                        self.lists.insert(list);
                    }
                }
            }
        });
    }

    /// Returns `7 of 8 came, missing: 4`, or nothing without lists.
    pub(super) fn describe(&self) -> Option<String> {
        let text = |numbers: &BTreeSet<u32>| ranges_text(&numbers.iter().copied().collect::<Vec<_>>());
        if !self.missing.is_empty() {
            return Some(format!("missing: {}", text(&self.missing)));
        }
        let end = self.size.unwrap_or(self.present.last()? + 1);
        let missing: BTreeSet<u32> = (0..end).filter(|number| !self.present.contains(number)).collect();
        let lists: Vec<String> = self.lists.iter().map(text).collect();
        Some(match (self.size, self.came) {
            (Some(size), Some(came)) if came as usize == self.present.len() && came < size => {
                format!("{came} of {size} came, missing: {}", text(&missing))
            }
            (Some(size), Some(came)) => format!("{came} of {size} came"),
            (Some(size), None) if missing.is_empty() => format!("all {size} came"),
            (Some(_), None) => format!("missing: {}", text(&missing)),
            _ if lists.len() > 1 => format!("these came to different ones: {}", lists.join("; ")),
            _ if missing.is_empty() => format!("only {} came", text(&self.present)),
            _ => format!("missing: {}, and others above {} if there are any", text(&missing), end - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Roll;
    use crate::knowledge::rules::{Origin, Rules};

    fn describe(lines: &[&str]) -> Option<String> {
        let (rules, mut roll) = (Rules::built_in(), Roll::default());
        for line in lines {
            roll.note_message(rules.find_rule(line.as_bytes(), Origin::Any).unwrap(), line.as_bytes());
        }
        roll.describe()
    }

    #[test]
    fn messages_tell_who_is_missing() {
        let barrier = |rank: u32, came: u32| {
            format!(
                "INFO:root:Waiting in store based barrier to initialize process group for rank: {rank}, key: \
                 store_based_barrier_key:1 (world_size=4, worker_count={came}, timeout=0:30:00)"
            )
        };
        let all = [barrier(0, 2), barrier(3, 3), barrier(1, 3)];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(describe(&all).as_deref(), Some("3 of 4 came, missing: 2"));
        // One of those that came has no line.
        assert_eq!(describe(&all[..2]).as_deref(), Some("3 of 4 came"));
        assert_eq!(describe(&["missing ranks: {1, 5, 6}"]).as_deref(), Some("missing: 1, 5-6"));
        assert_eq!(describe(&["Not all ranks joining collective 5 at entry 4"]), None);
        assert_eq!(
            describe(&["Stalled ops: a [ready ranks: 3, 1], b [ready ranks: 3, 1], c [ready ranks: 1,"])
                .as_deref(),
            Some("missing: 0, 2, and others above 3 if there are any")
        );
        assert_eq!(
            describe(&["Stalled ops: a [ready ranks: 3], b [ready ranks: 2, 0, 1]"]).as_deref(),
            Some("these came to different ones: 0-2; 3")
        );
    }
}
