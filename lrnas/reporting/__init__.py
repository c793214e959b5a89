"""The report page, and figures of studies, profiles, filters and the paper's results."""
