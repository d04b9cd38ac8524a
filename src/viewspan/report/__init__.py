"""From records to what people read: one HTML page, figures, tables, differences. It meets no model."""

from viewspan.report.page import audit_page, page

__all__ = ["audit_page", "page"]
