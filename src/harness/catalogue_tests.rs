use super::*;

fn read(text: &str) -> Result<Catalogue, InputError> {
    parse(text, "c.toml", &[], &Registry::default())
}

#[test]
fn families_are_listed_by_name_and_lists_multiply() {
    let text = r#"
        targets = ["hip:gfx942"]
        [[family]]
        family = "add"
        elements = [1, 2]
        fast = true
        [[family]]
        name = "Our Own"
        family = "add"
        elements = 3
    "#;
    let all = read(text).unwrap();
    assert_eq!(all.targets.iter().map(Target::to_string).collect::<Vec<_>>(), ["hip:gfx942"]);
    let settings = |r: &Request| {
        let key: Vec<String> = r.key.iter().map(|(f, v)| format!("{f}={v}")).collect();
        format!("{} {}", r.label, key.join(" "))
    };
    let all: Vec<String> = all.problems.iter().flatten().map(settings).collect();
    assert_eq!(all, ["add elements=1 fast=true", "add elements=2 fast=true", "our-own elements=3"]);
}

#[test]
fn tables_of_suites_that_are_not_there_are_unknown() {
    let error = read("[[other]]\nx = 1\n").unwrap_err().to_string();
    assert!(error.starts_with("c.toml: table = other: no such name"), "{error}");
    assert!(error.contains("targets, defaults, family"), "{error}");
}
