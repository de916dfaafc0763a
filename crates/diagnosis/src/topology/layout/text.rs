//! Widths of texts.

/// Estimates the width of a text from above, in pixels: the font is unknown, so a wide one is assumed.
pub fn width(text: &str, size: f64) -> f64 {
    let share = |character: char| match character {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' => 0.34,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.0,
        'A'..='Z' => 0.75,
        _ if character < '\u{1100}' => 0.64,
        _ => 1.1,
    };
    text.chars().map(share).sum::<f64>() * size
}

/// Returns the text, cut at its end to fit the room.
pub(super) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut short = String::new();
    for character in text.chars() {
        short.push(character);
        if width(&format!("{short}…"), size) > room {
            short.pop();
            break;
        }
    }
    if short.is_empty() { short } else { format!("{}…", short.trim_end()) }
}

/// Returns the first text that fits the room, or the last one, shortened.
pub(super) fn first_fitting(texts: &[String], size: f64, room: f64) -> String {
    let fitting = texts.iter().find(|text| width(text, size) <= room);
    fitting.cloned().or_else(|| texts.last().map(|text| fit(text, size, room))).unwrap_or_default()
}

/// Returns the text in lines that fit the room.
pub(super) fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if width(&longer, size) <= room || line.is_empty() {
            *line = longer;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter().map(|line| fit(line, size, room)).collect()
}
