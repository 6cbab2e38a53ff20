//! Reports as one HTML file, which needs no network: a page that draws the JSON inside it.

use serde_json::{Value, json};

const TEMPLATE: &str = include_str!("report.html.hbs");

/// A page of this title that draws `json`.
pub(super) fn report(title: &str, json: &Value) -> String {
    // A `<` stands in strings alone. Escaped, none ends the script element or opens a comment in it.
    let json = json.to_string().replace('<', "\\u003c");
    let page = json!({ "title": title, "json": json });
    handlebars::Handlebars::new()
        .render_template(TEMPLATE, &page)
        .expect("the template takes a title and JSON")
}

#[cfg(test)]
#[path = "html_tests.rs"]
pub(super) mod tests;
