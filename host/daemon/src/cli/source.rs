//! `walgate source`: what the publications send beyond what any plugin is granted, and the statement that stops it.
//!
//! Holds: what is shown. Refuses to judge (see [`walgate_core::publication`]). What is not sent cannot leak here, costs no
//! decoding and does not travel.

use serde::Serialize;
use walgate_core::grant::Grant;
use walgate_core::publication::{Beyond, TableExcess, excess};

use crate::config::Config;
use crate::exit::Failure;
use crate::printer::Printer;
use crate::{connect, plugins, preflight};

#[derive(Serialize)]
struct Report {
    publication: String,
    beyond: Vec<Listed>,
    /// Would stop as much of it as this server can.
    statement: Option<String>,
}

#[derive(Serialize)]
struct Listed {
    table: String,
    /// No grant names the table.
    whole: bool,
    columns: Vec<String>,
    /// Columns that have to be sent, because they are part of the replica identity.
    identity: Vec<String>,
    /// Rows are sent that every grant filters away.
    rows: bool,
}

pub(super) async fn source(config: &Config, printer: Printer) -> Result<(), Failure> {
    let directory = plugins::load(config).await?;
    let failed = |error| connect::source_failure(&error);
    let mut connection = connect::source(&config.source).await?;
    let major = connection.server_version();
    let publications = preflight::published(&mut connection, config).await.map_err(failed)?;
    let grants: Vec<&Grant> = directory.loaded.iter().map(|plugin| &plugin.grant).collect();
    let reports: Vec<Report> = publications
        .iter()
        .map(|publication| {
            let found = excess(publication, &grants, major);
            let beyond = found.tables.into_iter().map(listed).collect();
            Report { publication: publication.name.clone(), beyond, statement: found.statement }
        })
        .collect();
    printer.show(&reports, || reports.iter().map(text).collect());
    Ok(())
}

fn listed(table: TableExcess) -> Listed {
    let name = format!("{}.{}", table.namespace, table.name);
    match table.beyond {
        Beyond::Table => Listed { table: name, whole: true, columns: Vec::new(), identity: Vec::new(), rows: false },
        Beyond::Part { columns, identity, rows } => Listed { table: name, whole: false, columns, identity, rows },
    }
}

fn text(report: &Report) -> String {
    if report.beyond.is_empty() {
        return format!("publication {} sends nothing beyond what plugins are granted\n", report.publication);
    }
    let mut out = format!("publication {} sends more than plugins are granted:\n", report.publication);
    for table in &report.beyond {
        let mut parts = Vec::new();
        if table.whole {
            parts.push("the whole table".to_owned());
        }
        if !table.columns.is_empty() {
            parts.push(format!("columns {}", table.columns.join(", ")));
        }
        if !table.identity.is_empty() {
            parts.push(format!(
                "columns {} (part of the replica identity, which has to be sent)",
                table.identity.join(", ")
            ));
        }
        if table.rows {
            parts.push("rows that row_filter keeps from every plugin".to_owned());
        }
        out.push_str(&format!("  {}: {}\n", table.table, parts.join("; ")));
    }
    if let Some(statement) = &report.statement {
        out.push_str(&format!("To stop it:\n  {statement};\n"));
    }
    out
}
