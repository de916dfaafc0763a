//! Names on the PCI bus.

/// A bus ID as the kernel writes it: `0000:1b:00.0`. NVML has eight digits for the domain, and capitals.
pub(crate) fn normal_bus_id(text: &str) -> String {
    let lower = text.trim().to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_the_kernel_does() {
        assert_eq!(normal_bus_id("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(normal_bus_id("10000:E1:00.0"), "10000:e1:00.0");
        assert_eq!(normal_bus_id("00000002:0F:00.0"), "0002:0f:00.0");
        assert_eq!(normal_bus_id("0000:00:06.0\n"), "0000:00:06.0");
        assert_eq!(normal_bus_id("日本語日本:1"), "日本語日本:1");
    }
}
