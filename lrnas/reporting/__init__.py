"""The report page and the figures of studies, profiles, filters and of the paper."""
