//! The functions that a C header of NCCL declares.

use std::collections::BTreeSet;

/// The names `nccl...(` outside of comments. The profiler's `pnccl...` are the same functions once more.
pub(super) fn functions(header: &str) -> BTreeSet<String> {
    let text = without_comments(header);
    let in_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut names = BTreeSet::new();
    for (start, prefix) in text.match_indices("nccl") {
        let name: String = text[start..].chars().take_while(|character| in_name(*character)).collect();
        let whole = !text[..start].ends_with(in_name);
        let arguments = text[start + name.len()..].trim_start().strip_prefix('(');
        // `ncclResult_t (*` begins a pointer to a function.
        let function = arguments.is_some_and(|arguments| !arguments.trim_start().starts_with('*'));
        if whole && function && name[prefix.len()..].starts_with(|first: char| first.is_ascii_uppercase()) {
            names.insert(name);
        }
    }
    names
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code.push(' ');
        code.push_str(part.split_once("*/").map_or("", |(_, after)| after));
    }
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_and_nothing_else() {
        let header = "
            /* ncclInAComment(up to one) */
            // ncclInALine(comment)
            typedef struct ncclComm* ncclComm_t;
            typedef ncclResult_t (*ncclCallback_t)(int);
            #define NCCL_VERSION(X,Y,Z) ((X) * 10000)
            ncclResult_t  ncclFirst(ncclComm_t comm); ncclResult_t pncclFirst(ncclComm_t comm);
            const char*ncclSecond
                (void);
            void ncclThird_v2(ncclUniqueId id); /* of
            two lines */ void ncclFourth(void);
        ";
        let expected = ["ncclFirst", "ncclFourth", "ncclSecond", "ncclThird_v2"];
        assert_eq!(functions(header).into_iter().collect::<Vec<_>>(), expected);
    }
}
